#pragma once
#include <string>

namespace pyfabric {

// A name for a shared-memory endpoint that never repeats. It tells who may clean it up: pid namespace, pid, random bits.
std::string shared_memory_name();

// Removes what killed processes of this pid namespace left in /dev/shm (13-17 MB an endpoint).
void sweep_shared_memory();

// True when the endpoint of this name, closed or not, is one of this process.
bool shared_memory_is_ours(const std::string& endpoint);

// True when the endpoint of this name ("fi_shm://...") has been closed, or cleared away after its process.
bool shared_memory_gone(const std::string& endpoint);

}  // namespace pyfabric
