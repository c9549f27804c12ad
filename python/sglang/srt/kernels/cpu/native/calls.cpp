#include "calls.hpp"

#include <algorithm>
#include <cstring>

#include "parallel.hpp"

namespace cpu_kernels {
namespace {

int64_t padded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Below this many elements a second thread costs more than it brings: waking one takes some microseconds.
constexpr int64_t kWorthThreads = 1 << 15;

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

void call_linear(const Table& table, Linear call) {
  pad_inputs(call);
  const int64_t strips = padded(call.outputs, kStrip) / kStrip;
  split(strips, call.outputs * call.inputs > kWorthThreads, [&](int64_t first, int64_t last) {
    table.linear(call, first, last, scratch(table.linear_scratch(call)));
  });
}

void call_norm(const Table& table, const Norm& call) {
  split(call.rows, call.rows * call.heads * call.size > kWorthThreads,
        [&](int64_t first, int64_t last) { table.norm(call, first, last); });
}

void call_gate(const Table& table, const Gate& call) {
  split(call.rows, call.rows * call.width > kWorthThreads,
        [&](int64_t first, int64_t last) { table.gate(call, first, last); });
}

void call_rotate(const Table& table, const Rotate& call) {
  split(call.rows, call.rows * call.heads * call.dim > kWorthThreads,
        [&](int64_t first, int64_t last) { table.rotate(call, first, last); });
}

void call_store(const Table& table, const Decode& call, const void* kv, int64_t kv_stride) {
  const Pages& pages = call.pages;
  auto* first = static_cast<int64_t*>(shared_scratch(static_cast<size_t>(call.rows) * sizeof(int64_t)));
  for (int64_t row = 0; row < call.rows; row++) {
    const int64_t position = call.keys[row] - 1;
    const int64_t page = call.table[row * call.table_stride + position / pages.page_size];
    first[row] = (page * pages.kv_heads * 2 * pages.page_size + position % pages.page_size) * pages.dim;
  }
  table.store({pages, kv, kv_stride, call.type, first, call.rows}, 0, call.rows);
}

void call_decode(const Table& table, const Decode& call) {
  int64_t keys = 0;
  for (int64_t row = 0; row < call.rows; row++) keys += call.keys[row];
  const bool large = keys * call.pages.kv_heads * call.pages.dim > kWorthThreads;
  share(call.rows * call.pages.kv_heads, large,
        [&](int64_t item) { table.decode(call, item, scratch(table.decode_scratch(call))); });
}

}  // namespace cpu_kernels
