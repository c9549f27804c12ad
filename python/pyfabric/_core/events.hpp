#pragma once
#include <cstdint>
#include <mutex>
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

// Worker to Python: the eventfd is readable exactly while events wait.
class EventQueue {
 public:
  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  int fd() const { return fd_; }
  void push(Event event);
  std::vector<Event> drain();

 private:
  std::mutex mutex_;
  std::vector<Event> events_;
  int fd_;
};

}  // namespace pyfabric
