#pragma once
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace pyfabric {

struct ProgramDone {
  uint64_t handle;
  std::vector<int64_t> seen_ns, posted_ns, layer_bytes;
};
struct ProgramDrained {
  uint64_t handle;
};
struct ProgramFailed {
  uint64_t handle;
  int64_t peer;
  std::string reason;
};
struct SlotComplete {
  uint64_t slot;
  int64_t completed_ns;
};
struct PeerReady {
  int64_t peer;
};
struct PeerLost {
  int64_t peer;
  std::string reason;
};
using Event = std::variant<ProgramDone, ProgramDrained, ProgramFailed, SlotComplete, PeerReady, PeerLost>;

// Worker to Python: the eventfd is readable exactly while events wait. Knows which programs still owe their last event, so
// that a worker that hangs can be spoken for.
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  int fd() const { return fd_; }
  void armed(uint64_t handle);
  void push(Event event);
  void withdraw(uint64_t slot);  // its SlotComplete, if it waits
  std::vector<Event> drain();
  // The worker hangs: ends every program that it owes an event for, reports the peers, and takes nothing from it any more.
  void seal(const std::vector<int64_t>& peers, const std::string& reason);
  bool sealed() const;

 private:
  void append(Event event);
  void clear_signal();
  mutable std::mutex mutex_;
  std::set<uint64_t> owed_;  // handles of armed programs
  bool sealed_ = false;
  std::vector<Event> events_;
  int fd_;
};

}  // namespace pyfabric
