#include "calls.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel.hpp"

namespace cpu_kernels {
namespace {

// A cosine and a sine take some 20 ns.
constexpr int64_t kWorthTurns = 1 << 9;

// x with its inputs padded by zeros, in memory that all threads may read.
void pad_inputs(Linear& call) {
  const int64_t inputs = padded(call.inputs, kDepth);
  if (inputs == call.inputs) return;
  auto* x = static_cast<uint16_t*>(shared_scratch(static_cast<size_t>(call.rows * inputs) * 2));
  for (int64_t row = 0; row < call.rows; row++) {
    std::memcpy(x + row * inputs, call.x + row * call.x_stride, static_cast<size_t>(call.inputs) * 2);
    std::memset(x + row * inputs + call.inputs, 0, static_cast<size_t>(inputs - call.inputs) * 2);
  }
  call.x = x;
  call.x_stride = call.inputs = inputs;
}

void look_up(const Lookup& call, int64_t row) {
  const size_t bytes = static_cast<size_t>(call.width) * (call.type == Type::kFloat32 ? 4 : 2);
  std::memcpy(static_cast<char*>(call.out) + static_cast<size_t>(row) * bytes,
              static_cast<const char*>(call.table) + static_cast<size_t>(call.numbers[row]) * bytes, bytes);
}

// The reverse of pack: pairs of one output lie kStrip pairs apart.
void look_up_packed(const Lookup& call, int64_t row) {
  const int64_t number = call.numbers[row], strip = number / kStrip, depth = padded(call.width, kDepth);
  const uint16_t* from = static_cast<const uint16_t*>(call.table) + strip * kStrip * depth + number % kStrip * 2;
  uint16_t* to = static_cast<uint16_t*>(call.out) + row * call.width;
  for (int64_t k = 0; k < call.width; k++) to[k] = from[k / 2 * (2 * kStrip) + k % 2];
}

}  // namespace

int64_t packed_size(int64_t outputs, int64_t inputs) { return padded(outputs, kStrip) * padded(inputs, kDepth); }

void pack(const uint16_t* weight, int64_t stride, int64_t outputs, int64_t inputs, uint16_t* packed) {
  const int64_t depth = padded(inputs, kDepth), strips = padded(outputs, kStrip) / kStrip;
  split(strips, strips * depth > kWorthThreads, [&](int64_t first, int64_t last) {
    for (int64_t strip = first; strip < last; strip++) {
      uint16_t* to = packed + strip * kStrip * depth;
      std::memset(to, 0, static_cast<size_t>(kStrip * depth) * 2);
      const int64_t width = std::min(kStrip, outputs - strip * kStrip);
      for (int64_t n = 0; n < width; n++) {
        const uint16_t* from = weight + (strip * kStrip + n) * stride;
        for (int64_t k = 0; k < inputs; k++) to[k / 2 * (2 * kStrip) + n * 2 + k % 2] = from[k];
      }
    }
  });
}

void perform(const Table& table, const Linear& given) {
  Linear call = given;
  pad_inputs(call);
  const int64_t strips = padded(call.outputs, kStrip) / kStrip;
  const bool parallel = call.outputs * call.inputs > kWorthThreads;
  const auto multiply = [&](int64_t first, int64_t last) {
    table.linear(call, first, last, scratch(table.linear_scratch(call)));
  };
  if (call.rows <= kFewRows) return split(strips, parallel, multiply);
  // Taken a few at a time: whoever loses its core to another process for a while then has less to do.
  share(strips, std::max<int64_t>(1, strips / (kChunksPerThread * threads())), parallel, multiply);
}

void perform(const Table& table, const Norm& call) {
  split(call.rows, call.rows * call.heads * call.size > kWorthThreads,
        [&](int64_t first, int64_t last) { table.norm(call, first, last); });
}

void perform(const Table& table, const Gate& call) {
  split(call.rows, call.rows * call.width > kWorthThreads,
        [&](int64_t first, int64_t last) { table.gate(call, first, last); });
}

void perform(const Table& table, const Rotate& call) {
  split(call.rows, call.rows * call.heads * call.dim > kWorthThreads,
        [&](int64_t first, int64_t last) { table.rotate(call, first, last); });
}

void perform(const Table& table, const Add& call) {
  split(call.rows, call.rows * call.width > kWorthThreads,
        [&](int64_t first, int64_t last) { table.add(call, first, last); });
}

void perform(const Table&, const Lookup& call) {
  for (int64_t row = 0; row < call.rows; row++)
    if (call.numbers[row] < 0 || call.numbers[row] >= call.entries)
      throw std::out_of_range("number " + std::to_string(call.numbers[row]) + " of a table of " + std::to_string(call.entries));
  split(call.rows, call.rows * call.width > kWorthThreads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) call.packed ? look_up_packed(call, row) : look_up(call, row);
  });
}

void perform(const Table& table, const Turns& call) {
  split(call.rows, call.rows * call.pairs > kWorthTurns,
        [&](int64_t first, int64_t last) { table.turns(call, first, last); });
}

void perform(const Table& table, const Argmax& call) {
  split(call.rows, call.rows * call.size > kWorthThreads,
        [&](int64_t first, int64_t last) { table.argmax(call, first, last); });
}

void perform(const Table& table, const Draw& call) {
  share(call.rows, 1, call.rows * call.size > kWorthThreads, [&](int64_t first, int64_t last) {
    table.draw(call, first, last, scratch(table.draw_scratch(call)));
  });
}

void perform(const Table& table, const StoreRows& whole) {
  const Attend& call = whole.rows;
  const Pages& pages = call.pages;
  int64_t tokens = 0;
  for (int64_t row = 0; row < call.rows; row++) tokens += call.queries[row];
  auto* places = static_cast<Place*>(shared_scratch(static_cast<size_t>(tokens) * sizeof(Place)));
  for (int64_t row = 0, place = 0; row < call.rows; row++)
    for (int64_t query = 0; query < call.queries[row]; query++) {
      const int64_t position = call.keys[row] - call.queries[row] + query;
      const int64_t page = call.table[row * call.table_stride + position / pages.page_size];
      const int64_t offset = position % pages.page_size;
      places[place++] = {call.first[row] + query, (page * pages.kv_heads * 2 * pages.page_size + offset) * pages.dim};
    }
  const Store store{pages, whole.kv, whole.kv_stride, call.type, places};
  split(tokens, tokens * pages.kv_heads * pages.dim > kWorthThreads,
        [&](int64_t first, int64_t last) { table.store(store, first, last); });
}

void perform(const Table& table, const Decode& whole) {
  const Attend& call = whole.rows;
  int64_t keys = 0;
  for (int64_t row = 0; row < call.rows; row++) keys += call.keys[row];
  const int64_t heads = call.pages.kv_heads, workers = threads();
  int64_t parts = std::min(heads, (workers + call.rows - 1) / call.rows);
  if (call.rows * parts % workers && call.rows * parts < 4 * workers) parts = std::min(heads, 2 * parts);
  share(call.rows * parts, 1, keys * heads * call.pages.dim > kWorthThreads, [&](int64_t first, int64_t last) {
    void* memory = scratch(table.decode_scratch(call));
    for (int64_t item = first; item < last; item++) {
      const int64_t part = item % parts;
      table.decode(call, item / parts, heads * part / parts, heads * (part + 1) / parts, memory);
    }
  });
}

void perform(const Table& table, const Chunk& whole) {
  const Attend& call = whole.rows;
  std::vector<Tile> tiles;
  int64_t work = 0;
  const int64_t heads = std::min(call.group, kTileQueries), queries = kTileQueries / heads;
  for (int64_t row = 0; row < call.rows; row++) {
    work += call.queries[row] * call.keys[row];
    // The last queries see the most keys, and the longest tiles are best begun first.
    for (int64_t end = call.queries[row]; end > 0; end -= queries) {
      const int64_t first = std::max<int64_t>(0, end - queries);
      for (int64_t head = 0; head < call.pages.kv_heads; head++)
        for (int64_t part = 0; part < call.group; part += heads)
          tiles.push_back({row, head, first, end - first, part, std::min(heads, call.group - part)});
    }
  }
  share(static_cast<int64_t>(tiles.size()), 1, work * call.pages.kv_heads * call.pages.dim > kWorthThreads,
        [&](int64_t first, int64_t last) {
          void* memory = scratch(table.chunk_scratch(call));
          for (int64_t tile = first; tile < last; tile++) table.chunk(call, tiles[tile], memory);
        });
}

}  // namespace cpu_kernels
