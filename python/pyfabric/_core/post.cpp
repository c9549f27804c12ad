#include <rdma/fi_errno.h>

#include <algorithm>

#include "clock.hpp"
#include "errors.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

constexpr int kPostsAPass = 64;  // then look at the completions again
constexpr size_t kMostExtents = 16;
constexpr uint64_t kWarmBytes = 8;
constexpr int64_t kProbeGapNs = 10'000'000;

// One write's scatter lists, on the stack.
struct Message {
  iovec local[kMostExtents];
  void* descriptors[kMostExtents];
  fi_rma_iov remote[kMostExtents];
  uint32_t pieces = 0;
  uint64_t bytes = 0, weight = 0;
};

void fill(Message& m, const Lane& lane, const Link& link, const Limits& limits) {
  const LaneSpec& s = lane.spec;
  const uint64_t from = s.source->address() + s.source_layers[lane.layer] + s.source_offset;
  const uint64_t to = s.destination.base + s.destination_layers[lane.layer] + s.destination_offset;
  const size_t most = std::min<size_t>({lane.piece_limit, lane.pieces.size() - lane.piece, kMostExtents});
  for (; m.pieces < most; ++m.pieces) {
    const Piece& piece = lane.pieces[lane.piece + m.pieces];
    const uint64_t bytes = lane.bytes(piece);
    if (m.pieces && (m.weight + piece.pages > limits.max_weight || m.bytes + bytes > limits.max_write_bytes)) return;
    m.local[m.pieces] = {reinterpret_cast<void*>(from + uint64_t(piece.source) * s.source_stride), bytes};
    m.descriptors[m.pieces] = s.source->descriptor(link.rail);
    m.remote[m.pieces] = {to + uint64_t(piece.destination) * s.destination_stride, bytes, s.destination.keys[link.remote]};
    m.weight += piece.pages;
    m.bytes += bytes;
  }
}

}  // namespace

bool Worker::post_ready(int64_t now) {
  bool worked = false;
  for (auto& [id, peer] : peers_)
    worked |= post_warm(*peer, now);
  int budget = kPostsAPass;
  for (auto& program : programs_) {
    if (budget <= 0) break;
    if (program->wants_posting()) worked |= post_program(*program, now, budget);
  }
  return worked;
}

// One write of each lane in turn, so that all peers of a program get data at once.
bool Worker::post_program(Program& program, int64_t now, int& budget) {
  bool worked = false;
  for (bool moved = true; moved && budget > 0;) {
    moved = false;
    for (Lane& lane : program.lanes) {
      if (lane.layer >= program.released) continue;
      if (!post_lane(program, lane, now)) continue;
      moved = worked = true;
      --budget;
    }
    if (program.ending != Ending::kNone) break;
  }
  settle(program);
  return worked;
}

// The next link of the lane's peer that takes a write now: they take turns, so that a batch uses every rail.
Link* Worker::free_link(Lane& lane) const {
  auto& links = lane.peer->links;
  const uint64_t pass = passes_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < links.size(); ++i) {
    Link& link = links[(lane.next_link + i) % links.size()];
    if (link.in_flight >= windows_[link.rail] || link.blocked_pass == pass) continue;
    lane.next_link = (lane.next_link + i + 1) % links.size();
    return &link;
  }
  return nullptr;
}

long Worker::post(const Link& link, const Write& write) const {
  Rail& rail = *rails_[link.rail];
  return link.gate ? link.gate->pass([&] { return rail.post(write); }) : rail.post(write);
}

bool Worker::post_lane(Program& program, Lane& lane, int64_t now) {
  if (program.ending != Ending::kNone) return false;
  Link* link = free_link(lane);
  if (!link) return false;
  Message m;
  fill(m, lane, *link, limits_);
  Op& op = take_op();
  op.program = &program;
  const uint32_t immediate = slots_->immediate(program.slot, m.weight);
  const long rc = post(*link, {m.local, m.descriptors, m.remote, m.pieces, link->address, &op, immediate, true});
  if (!posted(*link, op, rc, now)) {
    if (rc != -FI_EAGAIN) program.fail(lane.peer->id, "posting a write: " + describe(int(-rc)));
    return false;
  }
  ++program.in_flight;
  PeerTallies& peer = *lane.peer->tallies;
  bump(tallies.writes_posted, 1), bump(peer.writes_posted, 1);
  bump(tallies.pages_posted, m.weight), bump(peer.pages_posted, m.weight);
  bump(tallies.bytes_posted, m.bytes), bump(peer.bytes_posted, m.bytes);
  advance(program, lane, m.pieces);
  return true;
}

void Worker::advance(Program& program, Lane& lane, uint32_t pieces) {
  lane.piece += pieces;
  if (lane.piece < lane.pieces.size()) return;
  lane.piece = 0;
  // Lanes walk the layers in order, so layers are completed in order too.
  if (--program.lanes_left[lane.layer] == 0) program.posted_ns[program.posted++] = now_ns();
  ++lane.layer;
}

bool Worker::post_warm(Peer& peer, int64_t now) {
  bool worked = false;
  for (Link& link : peer.links)
    if (link.warmth == Link::Warmth::kWanted) worked |= post_warm(link, now);
  return worked;
}

bool Worker::post_warm(Link& link, int64_t now) {
  if (link.blocked_pass == passes_.load(std::memory_order_relaxed)) return false;
  Peer& peer = *link.peer;
  if (peer.suspected_ns && now - link.warmed_ns < kProbeGapNs) return false;
  link.warmed_ns = now;
  iovec local{reinterpret_cast<void*>(scratch_->address()), kWarmBytes};
  void* descriptor = scratch_->descriptor(link.rail);
  fi_rma_iov remote{peer.target.scratch_base, kWarmBytes, peer.target.rails[link.remote].scratch_key};
  Op& op = take_op();
  op.warming = true;
  const long rc = post(link, {&local, &descriptor, &remote, 1, link.address, &op, 0, false});
  const bool done = posted(link, op, rc, now);
  if (done) link.warmth = Link::Warmth::kFlying;
  else if (rc != -FI_EAGAIN) lose(peer, "warming write: " + describe(int(-rc)), now);
  return done;
}

bool Worker::posted(Link& link, Op& op, long rc, int64_t now) {
  Peer& peer = *link.peer;
  if (rc == 0) {
    if (link.blocked_since) {
      bump(tallies.eagain_ns, uint64_t(now - link.blocked_since));
      bump(peer.tallies->eagain_ns, uint64_t(now - link.blocked_since));
    }
    if (peer.in_flight++ == 0) peer.progress_ns = now;
    ++link.in_flight;
    link.blocked_since = 0;
    op.link = &link;
    bump(tallies.in_flight, 1);
    bump(peer.tallies->in_flight, 1);
    ++in_flight_;
    return true;
  }
  give_op(op);
  if (rc == -FI_EAGAIN) {
    bump(tallies.eagain, 1);
    bump(peer.tallies->eagain, 1);
    link.blocked_pass = passes_.load(std::memory_order_relaxed);
    if (!link.blocked_since) link.blocked_since = now;
  } else {
    suspect(peer, now);
  }
  return false;
}

Op& Worker::take_op() {
  if (free_ops_.empty()) {
    ops_.emplace_back();
    free_ops_.reserve(ops_.size());
    return ops_.back();
  }
  Op& op = *free_ops_.back();
  free_ops_.pop_back();
  return op;
}

void Worker::give_op(Op& op) {
  op.program = nullptr;
  op.link = nullptr;
  op.warming = false;
  free_ops_.push_back(&op);
}

}  // namespace pyfabric
