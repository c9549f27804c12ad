#include <algorithm>

#include "clock.hpp"
#include "errors.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

constexpr int64_t kSeverNs = 1'000'000'000;  // after its connection is cut, a lost peer's writes get this long to come back
constexpr uint64_t kStalePasses = 64;
constexpr int64_t kProbeNs = 3'000'000'000;  // the control plane's heartbeats give a peer as long

}  // namespace

Peer* Worker::find_peer(int64_t id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

// Rail i of ours meets rail i of the peer's; the side that has fewer uses them again.
void Worker::add_peer(int64_t id, Address target, std::shared_ptr<PeerTallies> tallies, std::shared_ptr<Gate> gate) {
  submit([this, id, target = std::move(target), tallies = std::move(tallies), gate = std::move(gate)] {
    auto made = std::make_unique<Peer>();
    made->id = id;
    made->target = target;
    made->tallies = tallies;
    Peer& peer = *(peers_[id] = std::move(made));
    const size_t links = std::max(rails_.size(), target.rails.size());
    peer.links.reserve(links);
    for (size_t i = 0; i < links; ++i) {
      Link& link = peer.links.emplace_back();
      link.peer = &peer;
      link.gate = gate;
      link.rail = i % rails_.size();
      link.remote = i % target.rails.size();
      const long rc = rails_[link.rail]->add_peer(target.rails[link.remote].endpoint, link.address);
      if (rc == 0) continue;
      peer.links.pop_back();
      peer.reachable = false;
      return lose(peer, "the provider refuses its address: " + describe(int(-rc)), now_ns());
    }
  });
}

void Worker::warm(int64_t id) {
  submit([this, id] {
    Peer* peer = find_peer(id);
    if (!peer || peer->state == PeerState::kClosing) return;
    if (!peer->reachable) return events_->push(PeerLost{id, peer->reason});
    peer->state = PeerState::kOpen;
    peer->cool();
    peer->announce = true;
    for (Link& link : peer->links) link.warmth = Link::Warmth::kWanted;
  });
}

void Worker::disconnect(int64_t id) {
  submit([this, id] {
    Peer* peer = find_peer(id);
    if (!peer) return;
    peer->state = PeerState::kClosing;
    peer->reason = "disconnected";
    peer->cool();
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

// A write failed. Whether the peer is gone or only refused it (a revoked key), a probe must tell: on sockets both look alike.
void Worker::suspect(Peer& peer, int64_t now) {
  if (peer.state != PeerState::kOpen || peer.suspected_ns) return;
  peer.suspected_ns = now;
  for (Link& link : peer.links)
    if (link.warmth == Link::Warmth::kIdle) link.warmth = Link::Warmth::kWanted;
}

void Worker::lose(Peer& peer, const std::string& reason, int64_t now) {
  if (peer.state == PeerState::kLost) return;
  tallies.peers_lost.fetch_add(1, std::memory_order_relaxed);
  if (peer.state == PeerState::kOpen) {
    peer.reason = reason;
    bump(peer.tallies->lost, 1);
    events_->push(PeerLost{peer.id, reason});
  }
  peer.state = PeerState::kLost;
  peer.lost_ns = now;
  peer.cool();
  for (Link& link : peer.links)
    if (link.in_flight > 0) rails_[link.rail]->sever(link.address, peer.target.rails[link.remote].endpoint, peer.target);
  fail_programs(peer, peer.reason);
}

void Worker::lose_gone(const Rail& rail, uint64_t address, int64_t now) {
  for (auto& [id, peer] : peers_)
    for (const Link& link : peer->links)
      if (rails_[link.rail].get() == &rail && link.address == address) return lose(*peer, "its process is gone", now);
}

// Writes that never came back although their connection was cut: their programs end, their contexts stay reserved.
void Worker::abandon(Peer& peer) {
  for (Op& op : ops_) {
    if (!op.link || op.link->peer != &peer) continue;
    Program* program = op.program;
    if (op.warming) op.link->warmth = Link::Warmth::kIdle;
    op.link = nullptr;
    op.program = nullptr;
    --in_flight_;
    tallies.in_flight.fetch_sub(1, std::memory_order_relaxed);
    peer.tallies->in_flight.fetch_sub(1, std::memory_order_relaxed);
    tallies.abandoned.fetch_add(1, std::memory_order_relaxed);
    if (!program) continue;
    --program->in_flight;
    settle(*program);
  }
  peer.in_flight = 0;
  for (Link& link : peer.links) link.in_flight = 0;
}

void Worker::check_deadline(Peer& peer, int64_t now) {
  if (peer.state == PeerState::kLost) {
    if (peer.in_flight > 0 && now - peer.lost_ns > kSeverNs) abandon(peer);
    return;
  }
  const int64_t deadline = options_.deadline_ns;
  const std::string seconds = std::to_string(double(deadline) / 1e9) + " s";
  for (Link& link : peer.links) {
    // Every pass tries again while someone wants to post: a row of EAGAIN that nobody prolongs belongs to a program that ended.
    if (link.blocked_since && link.blocked_pass + kStalePasses < passes_.load(std::memory_order_relaxed)) link.blocked_since = 0;
    if (link.blocked_since && now - link.blocked_since > deadline) return lose(peer, "no write could be posted for " + seconds, now);
  }
  if (peer.in_flight > 0 && now - peer.progress_ns > deadline) return lose(peer, "no write completed for " + seconds, now);
  if (peer.suspected_ns && now - peer.suspected_ns > std::min(deadline, kProbeNs))
    lose(peer, "a write failed and the peer does not answer since", now);
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
    for (const Link& link : peer.links) rails_[link.rail]->remove_peer(link.address);
    return true;
  });
}

}  // namespace pyfabric
