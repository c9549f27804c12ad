// The sending half of MappedRail: fills rings and takes back what the receivers have completed.
#include <errno.h>

#include <algorithm>
#include <new>

#include "errors.hpp"
#include "mapped.hpp"

namespace pyfabric {

long MappedRail::add_peer(const std::string& endpoint, uint64_t& peer) {
  auto out = std::make_unique<Out>();
  peer = out->id = next_id_++;
  out->name = endpoint;
  outs_[peer] = std::move(out);
  return 0;
}

void MappedRail::remove_peer(uint64_t peer) {
  const auto found = outs_.find(peer);
  if (found == outs_.end()) return;
  bury(*found->second, ECANCELED);
  outs_.erase(found);
}

long MappedRail::connect(Out& out) {
  File socket;
  if (const long rc = connect_to(out.name, socket)) return rc;
  File file = make_shared_file("pyfabric-ring", sizeof(Ring));
  SharedMapping mapping;
  if (!mapping.open(file.fd(), true)) return -ENOMEM;
  Ring* ring = new (mapping.base()) Ring;
  ring->magic = kRingMagic;
  ring->entries = kRingEntries;
  if (const long rc = send_note(socket.fd(), {Note::kHello}, file.fd())) return rc;
  watch(socket.fd(), kOutTag | out.id);
  out.socket = std::move(socket);
  out.mapping = std::move(mapping);
  out.ring = ring;
  out.submitted = out.reaped = 0;
  out.known.clear();
  return 0;
}

// The note is in the socket before an entry names the source, so the receiver finds it there at the latest.
long MappedRail::introduce(Out& out, const MappedSource& source) {
  Note note{Note::kRegion};
  note.region = source.id;
  note.offset = source.offset;
  const long rc = send_note(out.socket.fd(), note, source.file.fd());
  if (rc == 0) out.known.insert(source.id);
  return rc;
}

long MappedRail::post(const Write& write) {
  const auto found = outs_.find(write.peer);
  if (found == outs_.end()) return -EINVAL;
  Out& out = *found->second;
  if (!out.ring)
    if (const long rc = connect(out)) return rc;
  if (out.waiting() == kRingEntries) return -EAGAIN;
  const auto& source = *static_cast<const MappedSource*>(write.descriptors[0]);
  if (!out.known.contains(source.id))
    if (const long rc = introduce(out, source)) return rc;
  RingEntry& entry = out.ring->list[out.submitted % kRingEntries];
  entry.region = source.id;
  entry.key = write.remote[0].key;
  entry.immediate = write.immediate;
  entry.counted = write.counted;
  entry.extents = uint32_t(write.extents);
  for (size_t i = 0; i < write.extents; ++i)
    entry.list[i] = {uint64_t(write.local[i].iov_base) - source.address, write.remote[i].addr, write.remote[i].len};
  out.contexts[out.submitted % kRingEntries] = write.context;
  show_ring_order();
  out.ring->submitted.store(++out.submitted, std::memory_order_seq_cst);
  // A full socket buffer holds bells enough.
  if (out.ring->receiver_asleep.load(std::memory_order_seq_cst) && out.ring->receiver_asleep.exchange(0))
    send_note(out.socket.fd(), {Note::kDoorbell});
  return 0;
}

void MappedRail::reap(Out& out, Completion* to, size_t& count, size_t most) {
  if (!out.ring) return;
  const uint64_t completed = std::min(out.ring->completed.load(std::memory_order_acquire), out.submitted);
  show_ring_order();
  for (; out.reaped < completed && count < most; ++out.reaped) {
    const size_t place = out.reaped % kRingEntries;
    const int status = out.ring->list[place].status;
    const auto kind = status ? Completion::Kind::kFailed : Completion::Kind::kDelivered;
    to[count++] = {kind, 0, out.contexts[place], 0, status, 0};
  }
}

// Ends a link. What the receiver had completed counts as delivered; the rest can no longer be counted by it (`closed`),
// and a copy that it is still in the middle of only reads from us.
void MappedRail::bury(Out& out, int error) {
  if (!out.ring) return;
  out.ring->closed.store(1, std::memory_order_seq_cst);
  Completion done[kRingEntries];
  size_t count = 0;
  reap(out, done, count, kRingEntries);
  pending_.insert(pending_.end(), done, done + count);
  for (; out.reaped < out.submitted; ++out.reaped)
    pending_.push_back({Completion::Kind::kFailed, 0, out.contexts[out.reaped % kRingEntries], 0, error, 0});
  out.ring = nullptr;
  out.mapping = SharedMapping();
  out.socket = File();
}

void MappedRail::sever(uint64_t peer, const std::string&, const Address&) {
  if (const auto found = outs_.find(peer); found != outs_.end()) bury(*found->second, ECANCELED);
}

void MappedRail::listen_to(Out& out) {
  long rc = 1;
  while (rc == 1) {
    Note note;
    File file;
    rc = receive_note(out.socket.fd(), note, file);  // bells: their only purpose is to have woken us
  }
  if (rc == 0) return;
  bury(out, ECONNRESET);
  pending_.push_back({Completion::Kind::kPeerGone, 0, nullptr, out.id, ECONNRESET, 0});
}

void MappedRail::forget_sources() {
  std::vector<uint64_t> gone;
  {
    const std::lock_guard lock(table_->mutex);
    gone.swap(table_->sources_gone);
  }
  for (const uint64_t id : gone)
    for (auto& [peer, out] : outs_) {
      Note note{Note::kRegionGone};
      note.region = id;
      // A peer whose socket is full is stopped; its mapping ends with the link.
      if (out->known.erase(id)) send_note(out->socket.fd(), note);
    }
}

}  // namespace pyfabric
