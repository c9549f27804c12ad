#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace pyfabric {

// Wakes the worker. A caller pays a system call only when the worker has flagged itself asleep.
class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  int fd() const { return fd_; }
  void wake() {
    if (asleep_.load(std::memory_order_seq_cst)) signal();
  }
  // The sleeper flags itself BEFORE its last look for work (both sides seq_cst), so no wake is lost.
  void fall_asleep() { asleep_.store(true, std::memory_order_seq_cst); }
  void wake_up(bool signalled);

 private:
  void signal();
  std::atomic<bool> asleep_{false};
  int fd_;
};

// A 64-bit word on a page of its own: a GPU or another library may map and bump it too (then without the wake).
class Counter : public std::enable_shared_from_this<Counter> {  // see Region
 public:
  explicit Counter(std::shared_ptr<Waker> waker);
  ~Counter();
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }
  uint64_t value() const { return word_->load(std::memory_order_acquire); }
  void add(uint64_t n) {
    word_->fetch_add(n, std::memory_order_seq_cst);
    waker_->wake();
  }

 private:
  std::shared_ptr<Waker> waker_;
  std::atomic<uint64_t>* word_;
};

}  // namespace pyfabric
