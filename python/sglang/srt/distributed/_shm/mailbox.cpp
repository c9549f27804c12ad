#include "mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "futex.hpp"

namespace shm {

Mailbox::Mailbox(uint64_t address, uint64_t nbytes, uint32_t readers, uint64_t spin_ns)
    : header_(reinterpret_cast<Header*>(address)),
      ring_(reinterpret_cast<uint8_t*>(address) + sizeof(Header)),
      readers_(readers),
      spin_ns_(spin_ns) {
  if (readers < 1 || readers > 64) throw std::invalid_argument("1..64 readers");
  if (address % 64 || nbytes < sizeof(Header) + 64) throw std::invalid_argument("memory unaligned or too small");
  capacity_ = nbytes - sizeof(Header);
}

void Mailbox::copy_in(uint64_t at, const void* data, uint64_t nbytes) {
  const uint64_t start = at % capacity_, first = std::min(nbytes, capacity_ - start);
  memcpy(ring_ + start, data, first);
  memcpy(ring_, static_cast<const char*>(data) + first, nbytes - first);
}

void Mailbox::copy_out(uint64_t at, void* data, uint64_t nbytes) const {
  const uint64_t start = at % capacity_, first = std::min(nbytes, capacity_ - start);
  memcpy(data, ring_ + start, first);
  memcpy(static_cast<char*>(data) + first, ring_, nbytes - first);
}

bool Mailbox::publish(const char* data, uint64_t nbytes) {
  const uint64_t at = header_->written.value.load(std::memory_order_relaxed);
  uint64_t oldest = at;
  for (uint32_t r = 0; r < readers_; ++r) oldest = std::min(oldest, header_->read[r].value.load(std::memory_order_acquire));
  if (at + sizeof nbytes + nbytes - oldest > capacity_) return false;
  copy_in(at, &nbytes, sizeof nbytes);
  copy_in(at + sizeof nbytes, data, nbytes);
  header_->written.value.store(at + sizeof nbytes + nbytes, std::memory_order_release);
  header_->ticks.value.fetch_add(1, std::memory_order_seq_cst);
  if (header_->sleepers.value.load(std::memory_order_seq_cst)) wake_all(header_->ticks.value);
  return true;
}

bool Mailbox::wait(uint64_t position) {
  const auto ready = [&] { return header_->written.value.load(std::memory_order_acquire) > position; };
  if (spin_ns_) {
    const uint64_t end = now_ns() + spin_ns_;
    do {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        pause();
      }
    } while (now_ns() < end);
  }
  while (!ready()) {
    if (header_->closed.value.load(std::memory_order_acquire)) return ready();
    header_->sleepers.value.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = header_->ticks.value.load(std::memory_order_seq_cst);
    if (!ready() && !header_->closed.value.load(std::memory_order_seq_cst)) sleep_on(header_->ticks.value, seen);
    header_->sleepers.value.fetch_sub(1, std::memory_order_relaxed);
  }
  return true;
}

std::optional<std::string> Mailbox::receive(uint32_t reader) {
  if (reader >= readers_) throw std::invalid_argument("no such reader");
  const uint64_t at = header_->read[reader].value.load(std::memory_order_relaxed);
  if (!wait(at)) return std::nullopt;
  uint64_t nbytes = 0;
  copy_out(at, &nbytes, sizeof nbytes);
  std::string message(nbytes, '\0');
  copy_out(at + sizeof nbytes, message.data(), nbytes);
  header_->read[reader].value.store(at + sizeof nbytes + nbytes, std::memory_order_release);
  return message;
}

void Mailbox::close() {
  header_->closed.value.store(1, std::memory_order_seq_cst);
  header_->ticks.value.fetch_add(1, std::memory_order_seq_cst);
  wake_all(header_->ticks.value);
}

}  // namespace shm
