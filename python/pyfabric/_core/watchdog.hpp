#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "worker.hpp"

namespace pyfabric {

// Notices a worker that hangs inside its provider and says so once. It counts its own ticks, not the clock: a process that
// was stopped and continues must not take the stop for a hang.
class Watchdog {
 public:
  Watchdog(std::shared_ptr<Worker> worker, int64_t deadline_ns, std::function<void()> hangs);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run(int64_t tick_ns);
  std::shared_ptr<Worker> worker_;
  std::function<void()> hangs_;
  std::mutex mutex_;
  std::condition_variable signal_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace pyfabric
