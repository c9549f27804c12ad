#include "program.hpp"

#include <algorithm>
#include <stdexcept>

namespace pyfabric {
namespace {

// Pieces up to this size share a write with others where the provider takes several extents (4 on tcp). tcp, 4 scattered
// pages a write against one: 2.5x at 4K, 1.3x at 16K, 1.5x at 32K and 64K, 1.2x at 256K.
constexpr uint64_t kSharedPieceBytes = 256 * 1024;

[[noreturn]] void reject(size_t lane, const std::string& what) {
  throw std::invalid_argument("lane " + std::to_string(lane) + ": " + what);
}

struct Side {
  const char* name;
  const std::vector<uint64_t>& layers;
  const std::vector<int32_t>& pages;
  uint64_t stride, offset, region;
};

// Every extent ends at layer + page * stride + offset + nbytes; the largest of them decides.
void check_side(size_t lane, const Side& side, uint64_t nbytes) {
  const auto name = std::string(side.name);
  if (side.offset > side.stride || nbytes > side.stride - side.offset)
    reject(lane, name + "_offset + nbytes exceeds " + name + "_page_bytes");
  int32_t low = side.pages[0], high = low;  // a loop that becomes vector instructions: std::minmax_element does not
  for (const int32_t page : side.pages) {
    low = std::min(low, page);
    high = std::max(high, page);
  }
  if (low < 0) reject(lane, name + "_pages has the negative index " + std::to_string(low));
  const uint64_t top = *std::max_element(side.layers.begin(), side.layers.end());
  uint64_t end = 0;
  const bool overflow = __builtin_mul_overflow(uint64_t(high), side.stride, &end) || __builtin_add_overflow(end, top, &end) ||
                        __builtin_add_overflow(end, side.offset + nbytes, &end);
  if (overflow || end > side.region)
    reject(lane, name + "_pages: page " + std::to_string(high) + " of the layer at byte " + std::to_string(top) +
                     " ends outside the " + name + " region of " + std::to_string(side.region) + " bytes");
}

void check_lane(size_t index, const LaneSpec& lane, size_t layers, const Limits& limits) {
  if (lane.nbytes == 0) reject(index, "nbytes must be positive");
  if (lane.nbytes > limits.max_write_bytes)
    reject(index, "nbytes exceeds the provider's largest write of " + std::to_string(limits.max_write_bytes) + " bytes");
  if (lane.source_layers.size() != layers) reject(index, "source_layers must have one entry a threshold");
  if (lane.destination_layers.size() != layers) reject(index, "destination_layers must have one entry a threshold");
  if (lane.source_pages.empty()) reject(index, "source_pages is empty");
  if (lane.source_pages.size() != lane.destination_pages.size()) reject(index, "source_pages and destination_pages differ in length");
  check_side(index, {"source", lane.source_layers, lane.source_pages, lane.source_stride, lane.source_offset, lane.source->nbytes()},
             lane.nbytes);
  check_side(index, {"destination", lane.destination_layers, lane.destination_pages, lane.destination_stride,
                     lane.destination_offset, lane.destination.nbytes}, lane.nbytes);
  if (lane.destination.base + lane.destination.nbytes < lane.destination.base) reject(index, "destination wraps the address space");
}

std::vector<Piece> cut(const LaneSpec& lane, const Limits& limits) {
  const bool whole = lane.nbytes == lane.source_stride && lane.nbytes == lane.destination_stride;
  const uint64_t longest = whole ? std::max<uint64_t>(1, std::min(limits.max_weight, limits.max_write_bytes / lane.nbytes)) : 1;
  std::vector<Piece> pieces;
  pieces.reserve(lane.source_pages.size());
  for (size_t i = 0; i < lane.source_pages.size(); ++i) {
    const int32_t source = lane.source_pages[i], destination = lane.destination_pages[i];
    if (!pieces.empty()) {
      Piece& last = pieces.back();
      const bool next = int64_t(source) == int64_t(last.source) + last.pages && int64_t(destination) == int64_t(last.destination) + last.pages;
      if (next && last.pages < longest) {
        ++last.pages;
        continue;
      }
    }
    pieces.push_back({source, destination, 1});
  }
  return pieces;
}

uint64_t pieces_a_write(const LaneSpec& lane, const Limits& limits) {
  if (lane.nbytes > kSharedPieceBytes) return 1;
  // A write that fits into the provider's own command stays there. shm (4 KiB), scattered extents of 512 bytes, four a write
  // against one: 2.0-2.5x; of 1 KiB: 1.6-2.0x; of 2 KiB, where four no longer fit: 0.8-0.9x, two 1.1x; of 4 KiB: 0.8-1.2x.
  const uint64_t inside = lane.nbytes <= limits.inject_bytes ? limits.inject_bytes / lane.nbytes : limits.write_extents;
  return std::max<uint64_t>(1, std::min(inside, limits.write_extents));
}

}  // namespace

bool Program::watch(int64_t now) {
  const uint32_t before = released;
  while (due()) seen_ns[released++] = now;
  return released > before;
}

void Program::fail(int64_t peer, const std::string& why) {
  if (ending != Ending::kNone) return;
  ending = Ending::kFailed;
  failed_peer = peer;
  reason = why;
}

void validate(const Program& program, const Limits& limits) {
  if (program.thresholds.empty()) throw std::invalid_argument("thresholds is empty");
  if (!std::is_sorted(program.thresholds.begin(), program.thresholds.end()))
    throw std::invalid_argument("thresholds must not decrease from layer to layer");
  if (program.slot >= limits.slots) throw std::invalid_argument("slot " + std::to_string(program.slot) + " exceeds what the immediate holds");
  if (program.lanes.empty()) throw std::invalid_argument("lanes is empty");
  for (size_t i = 0; i < program.lanes.size(); ++i) check_lane(i, program.lanes[i].spec, program.thresholds.size(), limits);
}

void compile(Program& program, const Limits& limits) {
  const size_t layers = program.thresholds.size();
  uint64_t bytes = 0;
  for (Lane& lane : program.lanes) {
    lane.pieces = cut(lane.spec, limits);
    lane.piece_limit = pieces_a_write(lane.spec, limits);
    bytes += lane.spec.nbytes * lane.spec.source_pages.size();
  }
  program.lanes_left.assign(layers, uint32_t(program.lanes.size()));
  program.seen_ns.assign(layers, 0);
  program.posted_ns.assign(layers, 0);
  program.layer_bytes.assign(layers, int64_t(bytes));
}

}  // namespace pyfabric
