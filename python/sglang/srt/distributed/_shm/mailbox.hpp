#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

namespace shm {

// One writer's messages to several readers, each of which reads all of them in order, through a ring in shared memory.
class Mailbox {
 public:
  // The memory must be zeroed at first. Readers are numbered from 0.
  Mailbox(uint64_t address, uint64_t nbytes, uint32_t readers, uint64_t spin_ns);

  // False where the slowest reader leaves too little room. Never blocks.
  bool publish(const char* data, uint64_t nbytes);

  // The reader's next message; nothing once the writer has closed and all is read.
  std::optional<std::string> receive(uint32_t reader);

  void close();

 private:
  struct alignas(64) Wide {
    std::atomic<uint64_t> value;
  };
  struct alignas(64) Word {
    std::atomic<uint32_t> value;
  };
  struct Header {
    Word closed;
    Word ticks;  // one a message; slept on
    Word sleepers;
    Wide written;     // bytes so far
    Wide read[64];    // by each reader
  };

  void copy_in(uint64_t at, const void* data, uint64_t nbytes);
  void copy_out(uint64_t at, void* data, uint64_t nbytes) const;
  bool wait(uint64_t position);

  Header* header_;
  uint8_t* ring_;
  uint64_t capacity_;
  uint32_t readers_;
  uint64_t spin_ns_;
};

}  // namespace shm
