#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shared_file.hpp"
#include "watchdog.hpp"
#include "worker.hpp"

namespace pyfabric {

struct EngineOptions {
  std::string provider, node;
  uint32_t weight_bits;
  uint64_t slots;
  double post_deadline_s;
  bool spin;
  std::vector<std::string> domains;  // empty: one, the provider's first
};

// What Python holds. Every method may be called from any thread and none waits for the worker, except revoke() and
// close(), which wait for a bounded time.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `cpus`: what the worker may run on; empty: anywhere.
  void start(const std::vector<int>& cpus);
  void close();
  std::string provider() const { return provider_; }
  bool virtual_addresses() const { return virtual_addresses_; }
  std::vector<std::string> domains() const { return domains_; }
  const std::string& address() const { return address_; }
  int fileno() const { return events_->fd(); }
  std::vector<Event> poll() { return events_->drain(); }

  std::shared_ptr<Region> register_memory(uint64_t address, uint64_t nbytes, const Backing& backing);
  bool revoke(Region& region, const std::string& peer);
  int64_t connect(const std::string& blob);
  void warm(int64_t peer);
  void disconnect(int64_t peer);
  void expect(uint64_t slot, uint64_t weight) { slots_->expect(slot, weight); }
  // Also takes back a SlotComplete that nobody has polled yet: the slot's next use must not hear of this one.
  uint64_t forget(uint64_t slot);
  std::shared_ptr<Counter> counter() const { return std::make_shared<Counter>(waker_); }
  uint64_t arm(std::unique_ptr<Program> program);
  void cancel(uint64_t handle);
  std::map<std::string, uint64_t> stats() const;
  std::map<std::string, uint64_t> peer_stats(int64_t peer) const;
  const Limits& limits() const { return limits_; }

 private:
  struct Known {
    size_t rails;
    std::shared_ptr<PeerTallies> tallies;
  };
  void require_open(const char* call) const;
  void require_alive(const char* call) const;
  const Known& require_peer(int64_t peer) const;
  void guard(const Lane& lane) const;
  void worker_hangs();

  std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  std::shared_ptr<Slots> slots_;
  EngineOptions options_;
  Rails rails_;
  std::vector<std::string> domains_;
  std::string provider_, address_;
  bool virtual_addresses_ = false;
  Limits limits_{};
  SharedMapping scratch_bytes_;
  std::shared_ptr<Region> scratch_;
  std::shared_ptr<Worker> worker_;
  std::unique_ptr<Watchdog> watchdog_;

  mutable std::mutex mutex_;  // guards what follows; never held while the worker is waited for
  std::vector<std::weak_ptr<Region>> regions_;
  std::map<int64_t, Known> peers_;
  int64_t next_peer_ = 0;
  bool started_ = false, closed_ = false;
  std::atomic<uint64_t> next_handle_{1};
};

}  // namespace pyfabric
