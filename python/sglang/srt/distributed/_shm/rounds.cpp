#include "rounds.hpp"

#include <stdexcept>

#include "futex.hpp"

namespace shm {

Rounds::Rounds(uint64_t address, uint64_t nbytes, uint32_t size)
    : header_(reinterpret_cast<Header*>(address)), size_(size) {
  if (address % 64 || nbytes < needed()) throw std::invalid_argument("memory unaligned or too small");
}

void Rounds::tell() {
  header_->ticks.fetch_add(1, std::memory_order_seq_cst);
  if (header_->sleepers.load(std::memory_order_seq_cst)) wake_all(header_->ticks);
}

// Work is there before the call. Either the joiner counts its round after the load below, and sees that work in it; or
// before, and then another round is called.
void Rounds::call() {
  const uint64_t next = joined_.load(std::memory_order_seq_cst) + 1;
  uint64_t seen = header_->called.load(std::memory_order_seq_cst);
  while (seen < next)
    if (header_->called.compare_exchange_weak(seen, next, std::memory_order_seq_cst)) {
      tell();
      return;
    }
}

bool Rounds::due() const {
  return header_->closed.load(std::memory_order_seq_cst) ||
         header_->called.load(std::memory_order_seq_cst) > joined_.load(std::memory_order_relaxed);
}

bool Rounds::join() {
  while (!due()) {
    header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = header_->ticks.load(std::memory_order_seq_cst);
    if (!due()) sleep_on(header_->ticks, seen);
    header_->sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
  if (header_->closed.load(std::memory_order_seq_cst)) return false;
  joined_.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

void Rounds::leave() {
  if (header_->left.fetch_add(1, std::memory_order_seq_cst) + 1 == size_) close();
}

void Rounds::close() {
  header_->closed.store(1, std::memory_order_seq_cst);
  tell();
}

}  // namespace shm
