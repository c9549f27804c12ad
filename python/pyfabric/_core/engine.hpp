#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "worker.hpp"

namespace pyfabric {

struct EngineOptions {
  std::string provider, node;
  uint32_t weight_bits;
  uint64_t slots;
  double post_deadline_s;
  bool spin;
};

// What Python holds. Every method may be called from any thread and none waits for the worker, except revoke() and
// close(), which wait for a bounded time.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start();
  void close();
  std::string provider() const { return provider_; }
  bool virtual_addresses() const { return virtual_addresses_; }
  const std::string& address() const { return address_; }
  int fileno() const { return events_->fd(); }
  std::vector<Event> poll() { return events_->drain(); }

  std::shared_ptr<Region> register_memory(uint64_t address, uint64_t nbytes);
  bool revoke(Region& region, const std::string& peer);
  int64_t connect(const std::string& blob);
  void warm(int64_t peer);
  void disconnect(int64_t peer);
  Slots& slots() { return *slots_; }
  std::shared_ptr<Counter> counter() const { return std::make_shared<Counter>(waker_); }
  uint64_t arm(std::unique_ptr<Program> program);
  void cancel(uint64_t handle);
  std::map<std::string, uint64_t> stats() const;
  const Limits& limits() const { return limits_; }

 private:
  void require_open(const char* call) const;
  void require_peer(int64_t peer) const;

  std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  std::shared_ptr<Slots> slots_;
  std::shared_ptr<Fabric> fabric_;
  std::string provider_, endpoint_, address_;
  bool virtual_addresses_ = false;
  Limits limits_{};
  EngineOptions options_;
  std::unique_ptr<char[]> scratch_bytes_;
  std::shared_ptr<Region> scratch_;
  std::shared_ptr<Worker> worker_;

  mutable std::mutex mutex_;  // guards what follows; never held while the worker is waited for
  std::vector<std::weak_ptr<Region>> regions_;
  std::set<int64_t> peers_;
  int64_t next_peer_ = 0;
  bool started_ = false, closed_ = false;
  std::atomic<uint64_t> next_handle_{1};
};

}  // namespace pyfabric
