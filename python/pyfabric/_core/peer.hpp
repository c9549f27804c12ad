#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "address.hpp"
#include "local_writers.hpp"

namespace pyfabric {

using Tally = std::atomic<uint64_t>;  // written by the worker alone

inline void bump(Tally& tally, uint64_t n) { tally.store(tally.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }

// What is known of one peer that we write to. Whom an immediate came from the fabric does not say.
struct PeerTallies {
  Tally writes_posted{0}, pages_posted{0}, bytes_posted{0}, errors{0}, eagain{0}, eagain_ns{0}, in_flight{0}, lost{0};
};

enum class PeerState { kOpen, kLost, kClosing };

struct Peer;

// One way to a peer: a rail of ours to a rail of its.
struct Link {
  Peer* peer = nullptr;
  size_t rail = 0, remote = 0;
  uint64_t address = 0;
  std::shared_ptr<Gate> gate;  // where the peer is of this process and written to over shm
  uint64_t in_flight = 0;
  int64_t blocked_since = 0;  // first EAGAIN of an unbroken row, 0 while posts go through
  uint64_t blocked_pass = 0;  // the loop pass in which it last answered EAGAIN
  int64_t warmed_ns = 0;      // when its last warming write was tried
  enum class Warmth : uint8_t { kIdle, kWanted, kFlying } warmth = Warmth::kIdle;
};

struct Peer {
  int64_t id = -1;
  Address target;
  std::shared_ptr<PeerTallies> tallies;
  std::vector<Link> links;  // never grows after connect
  PeerState state = PeerState::kOpen;
  bool reachable = true;      // false: a rail did not take its address
  bool announce = false;      // warm() waits for PeerReady
  uint64_t in_flight = 0;
  int64_t progress_ns = 0;    // last completion, or the first post after none was in flight
  int64_t suspected_ns = 0;   // a write failed: since when a probe is under way
  int64_t lost_ns = 0;
  std::string reason;

  bool warming() const {
    for (const Link& link : links)
      if (link.warmth != Link::Warmth::kIdle) return true;
    return false;
  }
  void cool() {
    announce = false;
    suspected_ns = 0;
    for (Link& link : links) {
      link.blocked_since = 0;
      if (link.warmth == Link::Warmth::kWanted) link.warmth = Link::Warmth::kIdle;
    }
  }
};

}  // namespace pyfabric
