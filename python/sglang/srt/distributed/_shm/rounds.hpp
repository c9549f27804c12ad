#pragma once
#include <atomic>
#include <cstdint>

namespace shm {

// Ranks that step together although each has work of its own: whoever has some calls, and every rank joins.
//
// A rank cannot be a round ahead of another, because what a round does synchronises them; so "the round after those I
// have joined" means the same to all.
class Rounds {
 public:
  // The memory must be zeroed when the first of `size` ranks comes.
  Rounds(uint64_t address, uint64_t nbytes, uint32_t size);

  static uint64_t needed() { return sizeof(Header); }

  // There will be a round after those that this rank has joined. For any thread of the rank; never blocks.
  void call();
  // Waits for the next round, for one thread of the rank; false once the rounds are over.
  bool join();
  // This rank calls no more, but joins until every rank has left; once for each rank.
  void leave();
  // No more rounds, for any rank. Idempotent.
  void close();

 private:
  struct Header {
    alignas(64) std::atomic<uint64_t> called;  // the last round that somebody has called
    alignas(64) std::atomic<uint32_t> ticks;   // slept on
    alignas(64) std::atomic<uint32_t> sleepers;
    alignas(64) std::atomic<uint32_t> left;
    alignas(64) std::atomic<uint32_t> closed;
  };

  bool due() const;
  void tell();

  Header* header_;
  uint32_t size_;
  std::atomic<uint64_t> joined_{0};
};

}  // namespace shm
