#include "team.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

namespace cpu_kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPlaces = 0xff;
constexpr uint32_t kNextJob = kPlaces + 1;

// From the end of a step to the start of the next one a server needs 0.1 ms.
constexpr auto kAwake = std::chrono::milliseconds(1);

// After so many looks (about 10 us) a waiting thread offers its core to whoever else wants to run at every look.
constexpr int kLooks = 256;

std::atomic<uint32_t> forks{0};
[[maybe_unused]] const int watched = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

inline void wait_a_little(int& looks) {
  if (looks++ < kLooks) pause();
  else sched_yield();
}

}  // namespace

Team::~Team() {
  forget_if_forked();
  ending_.store(true);
  state_.fetch_add(kNextJob);
  state_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void Team::forget_if_forked() {
  const uint32_t now = forks.load(std::memory_order_relaxed);
  if (now == forks_) return;
  forks_ = now;
  new std::vector<std::thread>(std::move(helpers_));  // neither joined nor detached: there are no such threads here
  helpers_.clear();
  asleep_.store(0);
}

void Team::hire(int helpers) {
  while (static_cast<int>(helpers_.size()) < helpers) {
    const int index = static_cast<int>(helpers_.size()) + 1;
    helpers_.emplace_back([this, index] { help(index); });
    pthread_setname_np(helpers_.back().native_handle(), "kernels");
  }
}

void Team::work(const Job& job, int threads) {
  const int helpers = std::min(threads, kMostThreads) - 1;
  forget_if_forked();
  if (static_cast<int>(helpers_.size()) < helpers) hire(helpers);
  job_ = job;
  for (int i = 0; i < job.ranges; i++) {
    ranges_[i].next.store(job.items * i / job.ranges, std::memory_order_relaxed);
    ranges_[i].last = job.items * (i + 1) / job.ranges;
  }
  left_.store(0, std::memory_order_relaxed);
  const uint32_t open = (state_.load(std::memory_order_relaxed) & ~kPlaces) + kNextJob;
  state_.store(open | static_cast<uint32_t>(helpers));
  if (asleep_.load()) state_.notify_all();
  take_part(0);
  const uint32_t joined = static_cast<uint32_t>(helpers) - (state_.exchange(open, std::memory_order_acq_rel) & kPlaces);
  for (int looks = 0; left_.load(std::memory_order_acquire) != joined;) wait_a_little(looks);
}

void Team::take_part(int index) {
  for (int i = 0; i < job_.ranges; i++) {
    Range& range = ranges_[(index + i) % job_.ranges];
    for (int64_t first; (first = range.next.fetch_add(job_.piece, std::memory_order_relaxed)) < range.last;)
      job_.body(job_.context, first, std::min(first + job_.piece, range.last));
  }
}

void Team::help(int index) {
  for (uint32_t done = 0;;) {
    uint32_t state = await(done);
    if (ending_.load()) return;
    if (!state_.compare_exchange_strong(state, state - 1, std::memory_order_acq_rel)) continue;
    done = state & ~kPlaces;
    take_part(index);
    left_.fetch_add(1, std::memory_order_release);
  }
}

// A state with a job other than `done` that has a place left, or any once the team ends.
uint32_t Team::await(uint32_t done) {
  const auto ready = [&](uint32_t state) {
    return ((state & kPlaces) && (state & ~kPlaces) != done) || ending_.load(std::memory_order_relaxed);
  };
  auto bedtime = Clock::now() + kAwake;
  for (int looks = 0;;) {
    const uint32_t state = state_.load(std::memory_order_acquire);
    if (ready(state)) return state;
    wait_a_little(looks);
    if (looks % 64 || Clock::now() < bedtime) continue;
    asleep_.fetch_add(1);
    state_.wait(state);
    asleep_.fetch_sub(1);
    looks = 0;  // weeks of sleep and waking would run over
    bedtime = Clock::now() + kAwake;
  }
}

}  // namespace cpu_kernels
