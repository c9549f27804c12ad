#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "address.hpp"
#include "counter.hpp"
#include "events.hpp"
#include "memory.hpp"
#include "peer.hpp"
#include "program.hpp"
#include "rail.hpp"
#include "slots.hpp"

namespace pyfabric {

// The context of one posted write. fi_context2 comes first: providers that ask for it own those bytes.
struct Op {
  fi_context2 context{};
  Program* program = nullptr;  // null: a warming write, or one whose program was given up
  Link* link = nullptr;        // null: not posted, or its peer was given up
  bool warming = false;
};

// What an event tells is counted before the event is pushed: its reader may look at once.
struct Tallies {
  Tally writes_posted{0}, pages_posted{0}, bytes_posted{0}, completions{0}, errors{0}, eagain{0}, eagain_ns{0}, in_flight{0},
      armed{0}, peers_lost{0}, abandoned{0}, sleeps{0};
};

struct WorkerOptions {
  int64_t deadline_ns;
  bool spin;
};

// The one native thread: watches counters, posts, reaps completions, counts immediates. It never calls Python.
// Public members may be called from any thread; everything else runs on the worker.
class Worker {
 public:
  Worker(Rails rails, std::shared_ptr<Waker> waker, std::shared_ptr<EventQueue> events, std::shared_ptr<Slots> slots,
         std::shared_ptr<Region> scratch, Limits limits, WorkerOptions options);

  void set_cpus(std::vector<int> cpus) { cpus_ = std::move(cpus); }  // before start(); empty: any
  static void start(const std::shared_ptr<Worker>& self);
  // Ends the thread. False when it did not end in time: it hangs inside the provider and was left behind.
  bool stop(int64_t patience_ns);
  void fail_leftovers();  // after stop(): reports the programs that the loop could not drain
  void release_rails() { rails_.clear(); }  // after stop(): lets the domains close
  // Returns once the loop has begun anew, so that nothing it had already looked up can still be in use.
  bool pass_by(int64_t patience_ns);
  // Returns once every immediate that had come in before the call has been credited.
  bool credit_all(int64_t patience_ns);
  uint64_t passes() const { return passes_.load(); }

  void submit(std::function<void()> command);
  void add_peer(int64_t id, Address target, std::shared_ptr<PeerTallies> tallies, std::shared_ptr<Gate> gate);
  void warm(int64_t peer);
  void disconnect(int64_t peer);
  void arm(std::unique_ptr<Program> program);
  void cancel(uint64_t handle);
  Tallies tallies;

 private:
  void run();
  bool pass();
  bool run_commands();
  bool watch(int64_t now);
  void wait(int64_t now);
  void yield(int64_t now);
  void woken_by_rail(int64_t slept_from);
  void watch_closely(int64_t until) const;
  bool may_sleep();
  int64_t nap(int64_t now);
  void drain_for_stop();
  bool can_wait() const;  // every rail has a descriptor that wakes us

  bool post_ready(int64_t now);
  bool post_program(Program& program, int64_t now, int& budget);
  bool post_lane(Program& program, Lane& lane, int64_t now);
  Link* free_link(Lane& lane) const;
  long post(const Link& link, const Write& write) const;
  bool post_warm(Peer& peer, int64_t now);
  bool post_warm(Link& link, int64_t now);
  bool posted(Link& link, Op& op, long rc, int64_t now);
  void advance(Program& program, Lane& lane, uint32_t pieces);

  bool reap(int64_t now);
  size_t reap(Rail& rail, int64_t now);
  bool wait_until(int64_t patience_ns, const std::function<bool()>& reached);
  void complete(Op& op, int64_t now, const std::string* error);
  void complete_warming(Link& link, int64_t now, const std::string* error);
  void take_failure(Rail& rail, const Completion& failed, int64_t now);
  void credit(const uint32_t* immediates, size_t count);
  void settle(Program& program);
  void sweep();

  Peer* find_peer(int64_t id);
  void check_deadlines(int64_t now);
  void check_deadline(Peer& peer, int64_t now);
  void suspect(Peer& peer, int64_t now);
  void lose(Peer& peer, const std::string& reason, int64_t now);
  void lose_gone(const Rail& rail, uint64_t address, int64_t now);
  void fail_programs(const Peer& peer, const std::string& reason);
  void abandon(Peer& peer);
  void forget_closed_peers();

  Op& take_op();
  void give_op(Op& op);

  Rails rails_;
  std::vector<uint64_t> windows_;  // by rail
  std::shared_ptr<Waker> waker_;
  std::shared_ptr<EventQueue> events_;
  std::shared_ptr<Slots> slots_;
  std::shared_ptr<Region> scratch_;
  const Limits limits_;
  const WorkerOptions options_;
  std::vector<int> cpus_;

  std::map<int64_t, std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::deque<Op> ops_;  // a deque never moves its elements
  std::vector<Op*> free_ops_;
  uint64_t in_flight_ = 0;
  uint64_t finished_ = 0;  // programs that ended and wait for the sweep
  int64_t last_work_ns_ = 0, last_check_ns_ = 0, nap_ns_ = 0, awake_ns_;

  std::mutex command_mutex_;
  std::vector<std::function<void()>> commands_;
  std::atomic<bool> command_waits_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> passes_{1};
  std::atomic<uint64_t> dry_{0};   // times that every rail was read until it had nothing
  std::atomic<uint64_t> taken_{0}; // completions read
  std::thread thread_;
  std::mutex ended_mutex_;
  std::condition_variable ended_signal_;
  bool ended_ = true;
};

}  // namespace pyfabric
