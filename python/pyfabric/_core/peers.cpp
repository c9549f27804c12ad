#include <algorithm>

#include "clock.hpp"
#include "errors.hpp"
#include "sockets.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

constexpr int64_t kSeverNs = 1'000'000'000;  // after its connection is cut, a lost peer's writes get this long to come back
constexpr uint64_t kStalePasses = 64;

}  // namespace

Peer* Worker::find_peer(int64_t id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

void Worker::add_peer(int64_t id, Address target) {
  submit([this, id, target = std::move(target)] {
    auto peer = std::make_unique<Peer>();
    peer->id = id;
    peer->target = target;
    const int got = fi_av_insert(fabric_->av.get(), target.endpoint.data(), 1, &peer->address, 0, nullptr);
    Peer& kept = *(peers_[id] = std::move(peer));
    if (got != 1) lose(kept, "fi_av_insert: " + describe(got < 0 ? -got : FI_EINVAL), now_ns());
  });
}

void Worker::warm(int64_t id) {
  submit([this, id] {
    Peer* peer = find_peer(id);
    if (!peer || peer->state == PeerState::kClosing) return;
    if (peer->address == FI_ADDR_UNSPEC) return events_->push(PeerLost{id, peer->reason});
    peer->state = PeerState::kOpen;
    peer->blocked_since = 0;
    peer->warm_wanted = true;
  });
}

void Worker::disconnect(int64_t id) {
  submit([this, id] {
    Peer* peer = find_peer(id);
    if (!peer) return;
    peer->state = PeerState::kClosing;
    peer->warm_wanted = false;
    peer->reason = "disconnected";
    peer->blocked_since = 0;
    fail_programs(*peer, peer->reason);
  });
}

void Worker::arm(std::unique_ptr<Program> armed) {
  tallies.armed.fetch_add(1, std::memory_order_relaxed);
  // std::function wants a copyable callable: the pointer is handed over raw and owned again on the other side.
  submit([this, raw = armed.release()] {
    Program& program = *programs_.emplace_back(raw);
    compile(program, limits_);
    for (Lane& lane : program.lanes) {
      lane.peer = find_peer(lane.spec.peer);
      if (!lane.peer) program.fail(lane.spec.peer, "disconnected");
      else if (lane.peer->state != PeerState::kOpen) program.fail(lane.spec.peer, lane.peer->reason);
    }
    settle(program);
  });
}

void Worker::cancel(uint64_t handle) {
  submit([this, handle] {
    for (auto& program : programs_) {
      if (program->handle != handle || program->finished) continue;
      if (program->ending == Ending::kNone) program->ending = Ending::kCancelled;
      settle(*program);
      return;
    }
  });
}

void Worker::fail_programs(const Peer& peer, const std::string& reason) {
  for (auto& program : programs_) {
    const bool uses = std::any_of(program->lanes.begin(), program->lanes.end(), [&](const Lane& l) { return l.peer == &peer; });
    if (!uses || program->finished) continue;
    program->fail(peer.id, reason);
    settle(*program);
  }
}

void Worker::lose(Peer& peer, const std::string& reason, int64_t now) {
  if (peer.state == PeerState::kLost) return;
  if (peer.state == PeerState::kOpen) {
    peer.reason = reason;
    events_->push(PeerLost{peer.id, reason});
  }
  peer.state = PeerState::kLost;
  peer.lost_ns = now;
  peer.warm_wanted = false;
  peer.blocked_since = 0;
  tallies.peers_lost.fetch_add(1, std::memory_order_relaxed);
  if (peer.in_flight > 0) {
    cut_connections_to(peer.target.endpoint);
    cut_accepted(endpoint_, &peer.target);  // one connection serves both directions, whoever opened it
  }
  fail_programs(peer, peer.reason);
}

// Writes that never came back although their connection was cut: their programs end, their contexts stay reserved.
void Worker::abandon(Peer& peer) {
  for (Op& op : ops_) {
    if (op.peer != &peer) continue;
    Program* program = op.program;
    op.peer = nullptr;
    op.program = nullptr;
    --in_flight_;
    tallies.in_flight.fetch_sub(1, std::memory_order_relaxed);
    tallies.abandoned.fetch_add(1, std::memory_order_relaxed);
    if (!program) continue;
    --program->in_flight;
    settle(*program);
  }
  peer.in_flight = 0;
}

void Worker::check_deadline(Peer& peer, int64_t now) {
  if (peer.state == PeerState::kLost) {
    if (peer.in_flight > 0 && now - peer.lost_ns > kSeverNs) abandon(peer);
    return;
  }
  // Every pass tries again while someone wants to post: a row of EAGAIN that nobody prolongs belongs to a program that ended.
  if (peer.blocked_since && peer.blocked_pass + kStalePasses < passes_.load(std::memory_order_relaxed)) peer.blocked_since = 0;
  const std::string seconds = std::to_string(double(options_.deadline_ns) / 1e9) + " s";
  if (peer.blocked_since && now - peer.blocked_since > options_.deadline_ns)
    lose(peer, "no write could be posted for " + seconds, now);
  else if (peer.in_flight > 0 && now - peer.progress_ns > options_.deadline_ns)
    lose(peer, "no write completed for " + seconds, now);
}

void Worker::check_deadlines(int64_t now) {
  last_check_ns_ = now;
  for (auto& [id, peer] : peers_) check_deadline(*peer, now);
  forget_closed_peers();
}

void Worker::forget_closed_peers() {
  std::erase_if(peers_, [this](const auto& item) {
    Peer& peer = *item.second;
    const bool closing = peer.reason == "disconnected" && peer.state != PeerState::kOpen;
    if (!closing || peer.in_flight > 0) return false;
    for (auto& program : programs_)
      for (auto& lane : program->lanes)
        if (lane.peer == &peer) return false;
    if (peer.address != FI_ADDR_UNSPEC) fi_av_remove(fabric_->av.get(), &peer.address, 1, 0);
    return true;
  });
}

}  // namespace pyfabric
