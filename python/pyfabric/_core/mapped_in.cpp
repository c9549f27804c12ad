// The receiving half of MappedRail: maps what senders pass, checks every entry of their rings, copies, counts.
#include <errno.h>

#include <cstring>

#include "copy.hpp"
#include "mapped.hpp"

namespace pyfabric {
namespace {

constexpr uint64_t kTurnBytes = 1 << 20;  // of one sender, before others and our own posts get their turn: ~0.15 ms

constexpr uint64_t kFenceBytes = 128 << 10;

void prefetch(const RingEntry& entry) {
  for (size_t at = 0; at < sizeof entry; at += 64) __builtin_prefetch(reinterpret_cast<const char*>(&entry) + at);
}

bool within(uint64_t offset, uint64_t nbytes, uint64_t size) { return offset <= size && nbytes <= size - offset; }

}  // namespace

void MappedRail::listen_to(In& in) {
  for (;;) {
    Note note;
    File file;
    const long rc = receive_note(in.socket.fd(), note, file);
    if (rc == 0) return;
    if (rc < 0 || !take(in, note, std::move(file))) {
      in.broken = true;  // the peer is gone, or talks nonsense: its ring and its memory go with it
      return;
    }
  }
}

bool MappedRail::take(In& in, const Note& note, File file) {
  if (note.version != 1 || (note.kind != Note::kHello && !in.ring)) return false;
  switch (note.kind) {
    case Note::kHello: {
      if (in.ring || !in.mapping.open(file.fd(), true) || in.mapping.nbytes() < sizeof(Ring)) return false;
      in.ring = reinterpret_cast<Ring*>(in.mapping.base());
      return in.ring->magic == kRingMagic && in.ring->entries == kRingEntries;
    }
    case Note::kRegion: {
      In::Mapped mapped{{}, note.offset};
      if (in.sources.contains(note.region) || !mapped.file.open(file.fd(), false)) return false;
      in.sources.emplace(note.region, std::move(mapped));
      return true;
    }
    case Note::kRegionGone: in.sources.erase(note.region); return true;
    case Note::kDoorbell: return true;
    default: return false;
  }
}

void MappedRail::work(In& in, Completion* to, size_t& count, size_t most) {
  if (!in.ring) return;
  const uint64_t submitted = in.ring->submitted.load(std::memory_order_acquire);
  show_ring_order();
  if (submitted - in.done > kRingEntries) {
    in.broken = true;
    return;
  }
  const uint64_t before = in.done;
  for (uint64_t moved = 0; in.done < submitted && count < most && moved < kTurnBytes && !in.broken;)
    moved += carry_some(in, submitted, to, count, most);
  if (in.broken) return;
  if (in.done == before) return;
  const uint64_t at = in.ring->wake_sender_at.load(std::memory_order_seq_cst);
  if (at && in.done >= at && in.ring->wake_sender_at.exchange(0)) send_note(in.socket.fd(), {Note::kDoorbell});
}

// A few entries, one fence, then their counts: a fence waits until the stores have left the core, ~5% of a 32 KiB entry.
uint64_t MappedRail::carry_some(In& in, uint64_t submitted, Completion* to, size_t& count, size_t most) {
  const size_t counted = count;
  uint64_t moved = 0, done = in.done;
  for (; done < submitted && count < most && moved < kFenceBytes && !in.broken; ++done) {
    RingEntry& shared = in.ring->list[done % kRingEntries];
    RingEntry entry;
    memcpy(&entry, &shared, sizeof entry);  // the sender could change it between our check and our copy
    if (done + 1 < submitted) prefetch(in.ring->list[(done + 1) % kRingEntries]);
    const int status = shared.status = carry(in, entry);
    if (status == 0 && entry.counted) to[count++] = {Completion::Kind::kImmediate, entry.immediate};
    for (uint32_t i = 0; i < entry.extents && i < kRingExtents; ++i) moved += entry.list[i].nbytes;
  }
  stream_fence();
  // Read after the copies: a sender that gave us up may have reused the pages meanwhile, so none of them counts.
  if (in.ring->closed.load(std::memory_order_seq_cst)) {
    in.broken = true;
    count = counted;
    return moved;
  }
  show_ring_order();
  // Before our look at wake_sender_at, for everyone: else the sender could miss this count and we its sleep.
  in.ring->completed.store(in.done = done, std::memory_order_seq_cst);
  return moved;
}

// Copies one entry, whose words come from another process: nothing outside the named source and target is touched.
int MappedRail::carry(In& in, const RingEntry& entry) {
  if (entry.extents == 0 || entry.extents > kRingExtents) return EINVAL;
  auto source = in.sources.find(entry.region);
  if (source == in.sources.end()) {
    listen_to(in);  // its introduction is waiting in the socket
    source = in.sources.find(entry.region);
    if (in.broken || source == in.sources.end()) return EINVAL;
  }
  MappedTable::Area target;
  {
    const std::lock_guard lock(table_->mutex);
    const auto found = table_->targets.find(entry.key);
    if (found == table_->targets.end()) return EACCES;
    target = found->second;
  }
  const In::Mapped& from = source->second;
  for (uint32_t i = 0; i < entry.extents; ++i) {
    const auto& extent = entry.list[i];
    if (!within(extent.to, extent.nbytes, target.nbytes)) return ERANGE;
    uint64_t at = 0;
    if (__builtin_add_overflow(from.offset, extent.from, &at) || !within(at, extent.nbytes, from.file.nbytes())) return ERANGE;
    stream_copy(reinterpret_cast<void*>(target.address + extent.to), from.file.base() + at, extent.nbytes);
  }
  return 0;
}

}  // namespace pyfabric
