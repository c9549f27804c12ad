#include "watchdog.hpp"

#include <pthread.h>
#include <signal.h>

#include <chrono>

namespace pyfabric {
namespace {

constexpr int kTicks = 8;
constexpr int64_t kIdleSleepNs = 1'000'000'000;  // an idle worker comes around once in that time

}  // namespace

Watchdog::Watchdog(std::shared_ptr<Worker> worker, int64_t deadline_ns, std::function<void()> hangs)
    : worker_(std::move(worker)), hangs_(std::move(hangs)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, tick = (deadline_ns + 2 * kIdleSleepNs) / kTicks] { run(tick); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  signal_.notify_all();
  thread_.join();
}

void Watchdog::run(int64_t tick_ns) {
  pthread_setname_np(pthread_self(), "pyfabric-watch");
  uint64_t last = 0;
  int unchanged = 0;
  std::unique_lock lock(mutex_);
  while (!signal_.wait_for(lock, std::chrono::nanoseconds(tick_ns), [this] { return over_; })) {
    const uint64_t passes = worker_->passes();
    unchanged = passes == last ? unchanged + 1 : 0;
    last = passes;
    if (unchanged == kTicks) hangs_();
  }
}

}  // namespace pyfabric
