#include "worker.hpp"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "clock.hpp"

namespace pyfabric {
namespace {

constexpr int64_t kMicro = 1'000, kMilli = 1'000'000;
// How long the worker stays awake after its last piece of work while more is due. Two cores: longer starves the compute.
// A sleep that the provider ends at once was not worth its system calls, nor the sender's of waking us: after such the
// worker stays awake for longer, up to the second figure, until a sleep was a long one. tcp, 4K pages: 12-20 sleeps a job
// instead of 200-470, 0.90-1.2x the raw loop instead of 0.66-0.79x.
constexpr int64_t kAwakeNs = 20 * kMicro;
constexpr int64_t kMostAwakeNs = 500 * kMicro;
constexpr int64_t kLateYieldNs = 50 * kMicro;
constexpr int64_t kWatchNs = 10 * kMicro;  // a spinning worker that waits for a counter alone looks at its rails so often
constexpr int64_t kFirstNap = 10 * kMicro;
constexpr int64_t kBusyNap = 200 * kMicro;   // nothing to wake us but something is due: adds at most this to a transfer
constexpr int64_t kIdleNap = 5 * kMilli;     // 200 looks a second, ~0.2% of a core
constexpr int64_t kArmedNap = 1 * kMilli;    // a mapped word may be bumped without the wake
constexpr int64_t kBlockedNap = 100 * kMicro;
constexpr int64_t kDeadlineNap = 20 * kMilli;
constexpr int64_t kProbeNap = 10 * kMilli;
constexpr int64_t kIdleSleep = 1000 * kMilli;
constexpr uint64_t kMostQueued = 2 * 16384;  // entries of a completion queue, and a batch that was under way
constexpr int64_t kStopDrain = 1000 * kMilli;

// The CPUs near the NIC. A refusal (CPUs outside our cpuset) leaves the thread where the scheduler puts it.
void pin(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace

Worker::Worker(Rails rails, std::shared_ptr<Waker> waker, std::shared_ptr<EventQueue> events, std::shared_ptr<Slots> slots,
               std::shared_ptr<Region> scratch, Limits limits, WorkerOptions options)
    : rails_(std::move(rails)), waker_(std::move(waker)), events_(std::move(events)), slots_(std::move(slots)),
      scratch_(std::move(scratch)), limits_(limits), options_(options), awake_ns_(kAwakeNs) {
  for (const auto& rail : rails_) windows_.push_back(rail->limits().window);
}

void Worker::start(const std::shared_ptr<Worker>& self) {
  sigset_t all, before;
  sigfillset(&all);
  // Signals belong to Python's main thread: the worker inherits a full mask.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  self->ended_ = false;
  self->thread_ = std::thread([self] {
    pthread_setname_np(pthread_self(), "pyfabric");
    prctl(PR_SET_TIMERSLACK, 1000);  // the default of 50 us would treble the short naps
    pin(self->cpus_);
    self->run();
    const std::lock_guard lock(self->ended_mutex_);
    self->ended_ = true;
    self->ended_signal_.notify_all();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Worker::stop(int64_t patience_ns) {
  stopping_ = true;
  waker_->wake();
  if (!thread_.joinable()) return true;
  std::unique_lock lock(ended_mutex_);
  bool ended = false;
  for (Patience patience(patience_ns); !ended && !patience.over();)
    ended = ended_signal_.wait_for(lock, std::chrono::nanoseconds(Patience::kStep / 2), [this] { return ended_; });
  lock.unlock();
  if (ended) thread_.join();
  else thread_.detach();
  return ended;
}

bool Worker::pass_by(int64_t patience_ns) {
  const uint64_t target = passes_.load() + 2;
  return wait_until(patience_ns, [this, target] { return passes_.load() >= target; });
}

// A rail hands completions out in order, so as many as a queue can hold are enough where traffic never lets it run dry.
bool Worker::credit_all(int64_t patience_ns) {
  const uint64_t dry = dry_.load() + 2, taken = taken_.load() + kMostQueued;
  return wait_until(patience_ns, [this, dry, taken] { return dry_.load() >= dry || taken_.load() >= taken; });
}

bool Worker::wait_until(int64_t patience_ns, const std::function<bool()>& reached) {
  Patience patience(patience_ns);
  while (!reached()) {
    {
      const std::lock_guard lock(ended_mutex_);
      if (ended_) return true;
    }
    if (patience.over()) return false;
    waker_->wake();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

void Worker::submit(std::function<void()> command) {
  {
    const std::lock_guard lock(command_mutex_);
    commands_.push_back(std::move(command));
  }
  command_waits_.store(true, std::memory_order_seq_cst);
  waker_->wake();
}

bool Worker::run_commands() {
  if (!command_waits_.exchange(false, std::memory_order_seq_cst)) return false;
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard lock(command_mutex_);
    commands = std::exchange(commands_, {});
  }
  for (auto& command : commands) command();
  return true;
}

void Worker::run() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool worked = pass();
    const int64_t now = now_ns();
    if (worked) {
      last_work_ns_ = now;
      nap_ns_ = kFirstNap;
    } else {
      wait(now);
    }
  }
  run_commands();
  drain_for_stop();
}

bool Worker::pass() {
  passes_.fetch_add(1, std::memory_order_release);
  bool worked = run_commands();
  const int64_t now = now_ns();
  worked |= watch(now);
  worked |= post_ready(now);
  worked |= reap(now);
  if (now - last_check_ns_ > kMilli) check_deadlines(now);
  if (finished_) sweep();
  return worked;
}

bool Worker::watch(int64_t now) {
  bool moved = false;
  for (auto& program : programs_) moved |= program->watch(now);
  return moved;
}

// Runs with the sleep flag set: whoever brings work after this look sees the flag and wakes us.
bool Worker::may_sleep() {
  if (command_waits_.load(std::memory_order_seq_cst) || stopping_.load(std::memory_order_seq_cst)) return false;
  for (auto& p : programs_)
    if (p->due()) return false;
  for (const auto& rail : rails_)
    if (!rail->may_sleep()) return false;
  return true;
}

bool Worker::can_wait() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->wait_fd() >= 0; });
}

// The longest sleep that is safe now, in ns. With a wait fd the provider wakes us; without one we must look.
int64_t Worker::nap(int64_t now) {
  const bool has_fd = can_wait();
  const bool due = in_flight_ > 0 || slots_->waiting() > 0;
  int64_t longest = has_fd ? kIdleSleep : kIdleNap;
  if (!programs_.empty()) longest = std::min(longest, kArmedNap);
  if (due) longest = std::min(longest, has_fd ? kDeadlineNap : kBusyNap);
  for (auto& [id, peer] : peers_)
    for (const Link& link : peer->links)
      if (link.warmth == Link::Warmth::kWanted && !link.blocked_since) longest = std::min(longest, kProbeNap);
      else if (link.blocked_since) longest = std::min(longest, now - link.blocked_since < kMilli ? kFirstNap : kBlockedNap);
  if (has_fd) return longest;
  nap_ns_ = std::min(std::max(nap_ns_ * 2, kFirstNap), longest);
  return nap_ns_;
}

void Worker::wait(int64_t now) {
  const bool due = in_flight_ > 0 || slots_->waiting() > 0;
  const bool watching = options_.spin && !programs_.empty();
  if (watching && !due) return watch_closely(now + kWatchNs);
  if (watching || (due && (options_.spin || now - last_work_ns_ < awake_ns_))) {
    if (!options_.spin) yield(now);
    return;
  }
  waker_->fall_asleep();
  bool woken = false;
  if (may_sleep()) {
    const int64_t longest = nap(now);
    const timespec limit{longest / 1'000'000'000, longest % 1'000'000'000};
    std::vector<pollfd> fds{{waker_->fd(), POLLIN, 0}};
    for (const auto& rail : rails_) fds.push_back({rail->wait_fd(), POLLIN, 0});  // a negative descriptor is skipped
    tallies.sleeps.fetch_add(1, std::memory_order_relaxed);
    const int ready = ppoll(fds.data(), fds.size(), &limit, nullptr);
    woken = fds[0].revents != 0;
    if (ready > (woken ? 1 : 0)) woken_by_rail(now);
  }
  waker_->wake_up(woken);
}

// A yield that comes back late gave the core to somebody: whoever sleeps instead is moved to an idle core when it wakes.
void Worker::yield(int64_t now) {
  sched_yield();
  if (now_ns() - now < kLateYieldNs) return;
  awake_ns_ = kAwakeNs;
  last_work_ns_ = 0;
}

// Bytes move, though nothing may be complete yet.
void Worker::woken_by_rail(int64_t slept_from) {
  last_work_ns_ = now_ns();
  awake_ns_ = last_work_ns_ - slept_from < kMostAwakeNs ? std::min(2 * awake_ns_, kMostAwakeNs) : kAwakeNs;
}

// A look at a rail may be a system call (tcp: 1-2 us), and a counter moves meanwhile: here nothing else is looked at.
void Worker::watch_closely(int64_t until) const {
  while (now_ns() < until && !command_waits_.load(std::memory_order_relaxed) && !stopping_.load(std::memory_order_relaxed))
    for (const auto& program : programs_)
      if (program->due()) return;
}

void Worker::drain_for_stop() {
  for (auto& program : programs_) {
    program->fail(-1, "engine closed");
    settle(*program);
  }
  for (Patience patience(std::min(kStopDrain, options_.deadline_ns)); in_flight_ > 0 && !patience.over();)
    if (!reap(now_ns())) std::this_thread::sleep_for(std::chrono::microseconds(50));
  sweep();
}

void Worker::fail_leftovers() {
  run_commands();
  bump(tallies.abandoned, std::exchange(in_flight_, 0));
  tallies.in_flight.store(0);
  for (auto& program : programs_) {
    program->fail(-1, "engine closed");
    program->in_flight = 0;  // the endpoint is closed: nothing of it can be in flight any more
    settle(*program);
  }
  sweep();
}

}  // namespace pyfabric
