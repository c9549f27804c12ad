#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace pyfabric {

class Worker;

// Between an endpoint and another one of this process that it writes to over shared memory. There libfabric 2.5.1 writes
// through the other's own mapping, which goes away when that one closes: so that one shuts the gate first, and waits until
// what has passed it is done.
class Gate {
 public:
  // Calls `post` and counts its write where that answers 0. A shut gate answers -FI_ESHUTDOWN instead.
  template <typename Post>
  long pass(const Post& post) {
    const std::lock_guard lock(mutex_);
    if (shut_) return kShut;
    const long rc = post();
    in_flight_ += rc == 0;
    return rc;
  }
  void done();  // one write has come back
  void shut();
  bool idle() const;

 private:
  static const long kShut;
  mutable std::mutex mutex_;
  bool shut_ = false;
  uint64_t in_flight_ = 0;
};

// Who writes to whom over shared memory within this process. libfabric 2.5.1 crashes (fi_cq_read) when two endpoints of one
// process, each with a thread of its own, write to each other; its lists of local endpoints are the process's, and so is this.
class LocalWriters {
 public:
  // Throws std::invalid_argument when `target` already writes to `writer`.
  static std::shared_ptr<Gate> claim(const std::string& writer, const std::string& target);
  // Shuts the gates to an endpoint that is about to close, whose worker still runs, and waits for what is under way.
  static void shut(const std::string& endpoint, int64_t patience_ns);
  // From now on `worker` takes in what is written to `endpoint`.
  static void serve(const std::string& endpoint, const std::shared_ptr<Worker>& worker);
  // Waits, when `endpoint` sends no more, until all of this process that it writes to have taken in what it has sent, its
  // greeting among it: they read that in its memory. False when one of them does not come around.
  static bool taken(const std::string& endpoint, int64_t patience_ns);
  // Before it is closed. False when it may not be: a write of this process to it, or from it, never came back.
  static bool forget(const std::string& endpoint);
};

}  // namespace pyfabric
