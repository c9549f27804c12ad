#pragma once
#include <string>

namespace pyfabric {

// A name for a shared-memory endpoint that never repeats. It tells who may clean it up: pid namespace, pid, random bits.
std::string shared_memory_name();

// Removes what killed processes of this pid namespace left in /dev/shm (13-17 MB an endpoint).
void sweep_shared_memory();

// True when the endpoint of this name ("fi_shm://...") has been closed, or cleared away after its process.
bool shared_memory_gone(const std::string& endpoint);

// Who writes to whom over shared memory within this process. libfabric 2.5.1 crashes (fi_cq_read) when two endpoints of one
// process, each with a thread of its own, write to each other; its lists of local endpoints are the process's, and so is this.
class LocalWriters {
 public:
  // Throws std::invalid_argument when `target` already writes to `writer`.
  static void claim(const std::string& writer, const std::string& target);
  static void forget(const std::string& endpoint);  // it was closed
};

}  // namespace pyfabric
