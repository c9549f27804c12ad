#include <algorithm>

#include "clock.hpp"
#include "errors.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

constexpr int kPostsAPass = 64;  // then look at the completions again
constexpr size_t kMostExtents = 16;
constexpr uint64_t kWarmBytes = 8;

void bump(Tally& tally, uint64_t n) { tally.store(tally.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }

// One write's scatter lists, on the stack.
struct Message {
  iovec local[kMostExtents];
  void* descriptors[kMostExtents];
  fi_rma_iov remote[kMostExtents];
  uint32_t pieces = 0;
  uint64_t bytes = 0, weight = 0;
};

void fill(Message& m, const Lane& lane, const Limits& limits) {
  const LaneSpec& s = lane.spec;
  const uint64_t from = s.source->address() + s.source_layers[lane.layer] + s.source_offset;
  const uint64_t to = s.destination.base + s.destination_layers[lane.layer] + s.destination_offset;
  const size_t most = std::min<size_t>({lane.piece_limit, lane.pieces.size() - lane.piece, kMostExtents});
  for (; m.pieces < most; ++m.pieces) {
    const Piece& piece = lane.pieces[lane.piece + m.pieces];
    const uint64_t bytes = lane.bytes(piece);
    if (m.pieces && (m.weight + piece.pages > limits.max_weight || m.bytes + bytes > limits.max_write_bytes)) return;
    m.local[m.pieces] = {reinterpret_cast<void*>(from + uint64_t(piece.source) * s.source_stride), bytes};
    m.descriptors[m.pieces] = s.source->descriptor();
    m.remote[m.pieces] = {to + uint64_t(piece.destination) * s.destination_stride, bytes, s.destination.key};
    m.weight += piece.pages;
    m.bytes += bytes;
  }
}

}  // namespace

bool Worker::post_ready(int64_t now) {
  bool worked = false;
  for (auto& [id, peer] : peers_)
    if (peer->warm_wanted) worked |= post_warm(*peer, now);
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

bool Worker::post_lane(Program& program, Lane& lane, int64_t now) {
  Peer& peer = *lane.peer;
  if (program.ending != Ending::kNone || peer.in_flight >= fabric_->window()) return false;
  if (peer.blocked_pass == passes_.load(std::memory_order_relaxed)) return false;
  Message m;
  fill(m, lane, limits_);
  Op& op = take_op();
  op.program = &program;
  const uint64_t immediate = slots_->immediate(program.slot, m.weight);
  const fi_msg_rma message{m.local, m.descriptors, m.pieces, peer.address, m.remote, m.pieces, &op, immediate};
  const long rc = fi_writemsg(fabric_->ep.get(), &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE | FI_COMPLETION);
  if (!posted(peer, op, rc, now)) {
    if (rc != -FI_EAGAIN) program.fail(peer.id, "fi_writemsg: " + describe(int(-rc)));
    return false;
  }
  ++program.in_flight;
  bump(tallies.writes_posted, 1);
  bump(tallies.pages_posted, m.weight);
  bump(tallies.bytes_posted, m.bytes);
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
  if (peer.blocked_pass == passes_.load(std::memory_order_relaxed)) return false;
  iovec local{reinterpret_cast<void*>(scratch_->address()), kWarmBytes};
  void* descriptor = scratch_->descriptor();
  fi_rma_iov remote{peer.target.scratch_base, kWarmBytes, peer.target.scratch_key};
  Op& op = take_op();
  op.warming = true;
  const fi_msg_rma message{&local, &descriptor, 1, peer.address, &remote, 1, &op, 0};
  const long rc = fi_writemsg(fabric_->ep.get(), &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
  const bool done = posted(peer, op, rc, now);
  if (!done && rc != -FI_EAGAIN) lose(peer, "fi_writemsg: " + describe(int(-rc)), now);
  if (done) peer.warm_wanted = false;
  return done;
}

bool Worker::posted(Peer& peer, Op& op, long rc, int64_t now) {
  if (rc == 0) {
    if (peer.blocked_since) bump(tallies.eagain_ns, uint64_t(now - peer.blocked_since));
    if (peer.in_flight++ == 0) peer.progress_ns = now;
    peer.blocked_since = 0;
    op.peer = &peer;
    bump(tallies.in_flight, 1);
    ++in_flight_;
    return true;
  }
  give_op(op);
  if (rc == -FI_EAGAIN) {
    bump(tallies.eagain, 1);
    peer.blocked_pass = passes_.load(std::memory_order_relaxed);
    if (!peer.blocked_since) peer.blocked_since = now;
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
  op.peer = nullptr;
  op.warming = false;
  free_ops_.push_back(&op);
}

}  // namespace pyfabric
