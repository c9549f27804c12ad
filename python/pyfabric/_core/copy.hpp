#pragma once
#include <cstddef>

namespace pyfabric {

// Copies past the cache with the widest stores that the CPU has: the destination is a KV pool that nobody reads at once,
// and a store that does not first read its line moves a third less. stream_fence() makes the bytes visible to others.
void stream_copy(void* to, const void* from, size_t nbytes);
void stream_fence();

}  // namespace pyfabric
