#pragma once
#include <atomic>
#include <cstdint>

namespace pyfabric {

constexpr uint32_t kRingMagic = 0x474e4952;  // "RING"
constexpr uint32_t kRingEntries = 128;  // a cancel waits for at most this many
// Eight 4K pages make an entry of ~5 us of copying: the ring's own cost (~0.2 us an entry) disappears behind it.
constexpr uint32_t kRingExtents = 8;

// One write: `extents` copies from one region of the sender's into what `key` names at the receiver.
struct RingEntry {
  struct Extent {
    uint64_t from, to, nbytes;
  };
  uint64_t region, key;
  uint32_t immediate, counted, extents;
  int32_t status;  // by the receiver: 0 or a positive errno
  Extent list[kRingExtents];
};

// Work from one sender to one receiver, in a memfd of the sender's that both map. The receiver believes nothing of it.
struct Ring {
  uint32_t magic, entries;
  alignas(64) std::atomic<uint64_t> submitted;  // by the sender
  alignas(64) std::atomic<uint64_t> completed;  // by the receiver, in order: the sender's completion counter
  alignas(64) std::atomic<uint32_t> receiver_asleep;
  // By the sender before it sleeps: the count of completions that is worth waking it for. 0: it is awake, or wants none.
  alignas(64) std::atomic<uint64_t> wake_sender_at;
  // By the sender, once it gives the receiver up: what is copied afterwards is never counted.
  alignas(64) std::atomic<uint32_t> closed;
  alignas(64) RingEntry list[kRingEntries];
};
#if defined(__SANITIZE_THREAD__)
// Where both ends are of one process the ring is mapped twice, and the thread sanitizer knows memory by its address: it
// would see no order between what the ends do. This word, touched wherever the ring's counts are, shows it.
inline void show_ring_order() {
  static std::atomic<uint64_t> word{0};
  word.fetch_add(1, std::memory_order_acq_rel);
}
#else
inline void show_ring_order() {}
#endif
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

}  // namespace pyfabric
