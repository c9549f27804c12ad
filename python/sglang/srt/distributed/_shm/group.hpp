#pragma once
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace shm {

// Somebody gave the group up: a rank died, hangs, or leaves.
struct Aborted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Element { f32, bf16, i64 };

// Collectives of the ranks of one machine over memory that all of them have mapped.
//
// Memory: a header, then two banks of one slot a rank. An operation works in one bank and the next in the other, so one
// barrier an operation is enough: who begins operation k has passed the barrier of k-1, which everybody entered after
// reading the bank of k-2.
class Group {
 public:
  // The memory must be zeroed when the first rank arrives. `spin_ns`: how long a barrier is polled before sleeping.
  Group(uint64_t address, uint64_t nbytes, uint32_t rank, uint32_t size, uint64_t spin_ns);

  static uint64_t needed(uint32_t size, uint64_t slot_bytes);

  // All throw Aborted. Every rank calls the same operations with the same sizes in the same order.
  void all_reduce(uint64_t address, uint64_t count, Element element);
  void all_gather(uint64_t source, uint64_t rows, uint64_t row_bytes, uint64_t target);
  void broadcast(uint64_t address, uint64_t nbytes, uint32_t root);
  // `counts` is [size, size], equal on every rank: rows from a rank to a rank. The source holds the rows by destination.
  void all_to_all(uint64_t source, uint64_t row_bytes, const std::vector<uint64_t>& counts, uint64_t target);
  void barrier();

  void abort();
  // How many barriers each rank has entered: who hangs is behind.
  std::vector<uint64_t> progress() const;

 private:
  struct alignas(64) Word {
    std::atomic<uint32_t> value;
  };
  struct alignas(64) Wide {
    std::atomic<uint64_t> value;
  };
  struct Header {
    Word aborted;
    Word round;     // the last barrier that everybody entered; slept on
    Word sleepers;
    Wide arrived;
    Wide entered[64];
  };

  bool passed(uint32_t round) const;
  void check() const;
  uint8_t* slot(uint32_t rank) const { return slots_ + (uint64_t(bank_) * size_ + rank) * slot_bytes_; }
  void reduce_small(uint8_t* data, uint64_t count, Element element);
  void reduce_large(uint8_t* data, uint64_t count, Element element);
  void sum(uint8_t* out, uint64_t first, uint64_t count, Element element) const;

  Header* header_;
  uint8_t* slots_;
  uint64_t slot_bytes_;
  uint32_t rank_;
  uint32_t size_;
  uint64_t spin_ns_;
  uint64_t rounds_ = 0;
  uint32_t bank_ = 0;
};

}  // namespace shm
