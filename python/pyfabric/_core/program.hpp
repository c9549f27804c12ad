#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "counter.hpp"
#include "memory.hpp"

namespace pyfabric {

// Counts a program among a region's readers for as long as it may read from it.
class ReadLease {
 public:
  ReadLease() = default;
  explicit ReadLease(std::shared_ptr<Region> region) : region_(std::move(region)) { ++region_->readers; }
  ReadLease(ReadLease&& other) noexcept = default;
  ReadLease& operator=(ReadLease&&) = delete;
  ~ReadLease() {
    if (region_) --region_->readers;
  }
  Region* operator->() const { return region_.get(); }

 private:
  std::shared_ptr<Region> region_;
};

// One (source rank -> destination rank) pair, as armed. Offsets are bytes inside the regions.
struct LaneSpec {
  ReadLease source;
  int64_t peer = 0;
  Grant destination{};
  std::vector<uint64_t> source_layers, destination_layers;
  uint64_t source_stride = 0, destination_stride = 0;
  uint64_t source_offset = 0, destination_offset = 0, nbytes = 0;
  std::vector<int32_t> source_pages, destination_pages;
};

// What the engine can carry: a program is checked against it before anything is posted.
struct Limits {
  uint64_t slots, max_weight, max_write_bytes, write_extents, inject_bytes;
};

// A run of pages consecutive on both sides, or one page's extent.
struct Piece {
  int32_t source, destination;
  uint32_t pages;
};

struct Peer;

struct Lane {
  LaneSpec spec;
  std::vector<Piece> pieces;
  uint64_t piece_limit = 1;  // pieces in one write
  uint32_t layer = 0, piece = 0;
  size_t next_link = 0;  // of the peer: writes take turns on its links
  Peer* peer = nullptr;
  uint64_t bytes(const Piece& p) const { return p.pages * spec.nbytes; }
};

enum class Ending { kNone, kCancelled, kFailed };

struct Program {
  uint64_t handle = 0;
  std::shared_ptr<Counter> counter;
  std::vector<uint64_t> thresholds;
  uint64_t slot = 0;
  std::vector<Lane> lanes;

  uint32_t released = 0;      // layers whose threshold has been seen
  uint32_t posted = 0;        // layers posted in full
  std::vector<uint32_t> lanes_left;  // per layer: lanes that have not posted it in full
  std::vector<int64_t> seen_ns, posted_ns, layer_bytes;
  uint64_t in_flight = 0;
  Ending ending = Ending::kNone;
  bool finished = false;
  int64_t failed_peer = -1;
  std::string reason;

  uint32_t layers() const { return uint32_t(thresholds.size()); }
  bool all_posted() const { return posted == layers(); }
  bool wants_posting() const { return ending == Ending::kNone && posted < released; }
  bool due() const { return ending == Ending::kNone && released < layers() && thresholds[released] <= counter->value(); }
  // Records the layers whose threshold the counter has reached. True when there are new ones.
  bool watch(int64_t now);
  void fail(int64_t peer, const std::string& why);
};

// Throws std::invalid_argument, naming the lane and the field, unless every extent lies inside its region.
void validate(const Program& program, const Limits& limits);

// Cuts each lane's page list into pieces (once: the list is the same for all layers) and sizes the bookkeeping.
void compile(Program& program, const Limits& limits);

}  // namespace pyfabric
