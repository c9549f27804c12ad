// Calls of a sparse layer: who goes where, and what all experts that were hit compute, as one call.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "calls.hpp"
#include "parallel.hpp"

namespace cpu_kernels {
namespace {

// Assignments of tokens to experts that are computed at once: with 2,048 inputs and experts of 768 this much is 140 MB.
constexpr int64_t kMostAssigned = 1 << 14;

// Pieces of one block of memory, each on a cache line of its own. Without a block it only adds up.
class Carver {
 public:
  explicit Carver(void* block = nullptr) : block_(static_cast<char*>(block)) {}
  template <typename T> T* take(int64_t count) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return block_ ? reinterpret_cast<T*>(block_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  char* block_;
  size_t used_ = 0;
};

// Rows of x in the order of their experts.
struct Sorted {
  int32_t* rows;     // [assignments]: of x
  int32_t* places;   // [rows, top_k]: where among them; -1 for an expert that is not held
  int32_t* hits;     // [count]: experts that have rows
  int32_t* starts;   // [count + 1]: by expert
  int64_t assigned;  // to experts that are held
  int64_t hit;
};

// Everything between a call's input and its output.
struct Workspace {
  Sorted sorted;
  uint16_t* x;     // [assignments, inputs, padded]; then [.., inputs] what the experts computed
  uint16_t* both;  // [assignments, 2 * width]
  uint16_t* gated; // [assignments, width, padded]
};

Workspace carve(Carver& carver, const Experts& call) {
  const int64_t most = call.rows * call.top_k;
  Workspace w{};
  w.sorted.rows = carver.take<int32_t>(most);
  w.sorted.places = carver.take<int32_t>(most);
  w.sorted.hits = carver.take<int32_t>(call.count);
  w.sorted.starts = carver.take<int32_t>(call.count + 1);
  w.x = carver.take<uint16_t>(most * padded(call.inputs, kDepth));
  w.both = carver.take<uint16_t>(most * 2 * call.width);
  w.gated = carver.take<uint16_t>(most * padded(call.width, kDepth));
  return w;
}

// By counting. Within an expert rows keep their order.
void sort(const Experts& call, Sorted& s) {
  const int64_t most = call.rows * call.top_k;
  const auto held = [&](int64_t i) { return call.chosen[i] >= call.first && call.chosen[i] < call.first + call.count; };
  std::fill(s.starts, s.starts + call.count + 1, 0);
  for (int64_t i = 0; i < most; i++)
    if (held(i)) s.starts[call.chosen[i] - call.first + 1]++;
  s.hit = 0;
  for (int64_t expert = 0; expert < call.count; expert++) {
    if (s.starts[expert + 1]) s.hits[s.hit++] = static_cast<int32_t>(expert);
    s.starts[expert + 1] += s.starts[expert];
  }
  s.assigned = s.starts[call.count];
  for (int64_t i = 0; i < most; i++) {
    s.places[i] = held(i) ? s.starts[call.chosen[i] - call.first]++ : -1;
    if (s.places[i] >= 0) s.rows[s.places[i]] = static_cast<int32_t>(i / call.top_k);
  }
  // Each start has moved on to the next expert's.
  std::copy_backward(s.starts, s.starts + call.count, s.starts + call.count + 1);
  s.starts[0] = 0;
}

void copy_padded(const uint16_t* from, uint16_t* to, int64_t size, int64_t depth) {
  std::memcpy(to, from, static_cast<size_t>(size) * 2);
  std::memset(to + size, 0, static_cast<size_t>(depth - size) * 2);
}

// One product of every expert that was hit: `layer` gives an expert's, over all its rows. Threads share the strips of all.
template <typename Layer> void multiply(const Table& table, const Sorted& s, int64_t outputs, const Layer& layer) {
  const int64_t strips = padded(outputs, kStrip) / kStrip, items = s.hit * strips;
  const auto body = [&](int64_t first, int64_t last) {
    while (first < last) {
      const int64_t expert = s.hits[first / strips], strip = first % strips;
      const int64_t end = std::min(strips, strip + last - first);
      const int64_t start = s.starts[expert], rows = s.starts[expert + 1] - start;
      const Linear call = layer(expert, start, rows);
      table.linear(call, strip, end, scratch(table.linear_scratch(call)));
      first += end - strip;
    }
  };
  if (s.assigned <= kFewRows * s.hit) return split(items, true, body);
  share(items, std::max<int64_t>(1, items / (kChunksPerThread * threads())), true, body);
}

// silu(gate) * up, its rows padded for the product that follows.
void gate(const Table& table, const uint16_t* both, uint16_t* out, int64_t rows, int64_t width) {
  const int64_t depth = padded(width, kDepth);
  split(rows, rows * width > kWorthThreads, [&](int64_t first, int64_t last) {
    if (depth == width) return table.gate(Gate{both, 2 * width, out, rows, width, Type::kBfloat16}, first, last);
    for (int64_t row = first; row < last; row++) {
      table.gate(Gate{both + row * 2 * width, 2 * width, out + row * depth, 1, width, Type::kBfloat16}, 0, 1);
      std::memset(out + row * depth + width, 0, static_cast<size_t>(depth - width) * 2);
    }
  });
}

void compute(const Table& table, const Experts& call) {
  Carver measure;
  carve(measure, call);
  Carver carver(shared_scratch(measure.used()));
  Workspace w = carve(carver, call);
  Sorted& s = w.sorted;
  sort(call, s);
  const int64_t depth = padded(call.inputs, kDepth), gated_depth = padded(call.width, kDepth);
  split(s.assigned, s.assigned * depth > kWorthThreads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) copy_padded(call.x + s.rows[i] * call.x_stride, w.x + i * depth, call.inputs, depth);
  });
  multiply(table, s, 2 * call.width, [&](int64_t expert, int64_t start, int64_t rows) {
    const Expert& e = call.held[expert];
    return Linear{w.x + start * depth, depth, e.gate_up, nullptr, w.both + start * 2 * call.width, 2 * call.width,
                  rows,                2 * call.width, depth, e.gate_up_scales};
  });
  gate(table, w.both, w.gated, s.assigned, call.width);
  multiply(table, s, call.inputs, [&](int64_t expert, int64_t start, int64_t rows) {
    const Expert& e = call.held[expert];
    return Linear{w.gated + start * gated_depth, gated_depth, e.down, nullptr, w.x + start * depth, depth,
                  rows,                          call.inputs, gated_depth, e.down_scales};
  });
  const Weigh sum{w.x, depth, s.places, call.shares, call.top_k, call.out, call.inputs};
  split(call.rows, call.rows * call.top_k * call.inputs > kWorthThreads,
        [&](int64_t first, int64_t last) { table.weigh(sum, first, last); });
}

// The likeliest of one row, by repeated search: top_k is small. Where nothing compares (NaN) the first that is left.
void choose(const Route& call, const float* scores, char* taken, int64_t* chosen, float* shares) {
  std::memset(taken, 0, static_cast<size_t>(call.experts));
  for (int64_t k = 0; k < call.top_k; k++) {
    int64_t best = -1;
    for (int64_t e = 0; e < call.experts; e++)
      if (!taken[e] && (best < 0 || scores[e] > scores[best])) best = e;
    taken[best] = 1;
    chosen[k] = best;
  }
  const float highest = scores[chosen[0]];
  float all = 0.0f, kept = 0.0f;
  for (int64_t e = 0; e < call.experts; e++) all += std::exp(scores[e] - highest);
  for (int64_t k = 0; k < call.top_k; k++) kept += shares[k] = std::exp(scores[chosen[k]] - highest) / all;
  const float factor = call.normalize ? call.scale / (kept + 1e-20f) : call.scale;
  for (int64_t k = 0; k < call.top_k; k++) shares[k] *= factor;
}

}  // namespace

void perform(const Table& table, const Route& call) {
  auto* scores = static_cast<float*>(shared_scratch(static_cast<size_t>(call.rows * call.experts) * sizeof(float)));
  const int64_t blocks = padded(call.experts, kExpertsAtOnce) / kExpertsAtOnce;
  split(blocks, call.rows * call.experts * call.inputs > kWorthThreads,
        [&](int64_t first, int64_t last) { table.scores(call, scores, first, last); });
  split(call.rows, call.rows * call.experts * call.top_k > kWorthThreads, [&](int64_t first, int64_t last) {
    auto* taken = static_cast<char*>(scratch(static_cast<size_t>(call.experts)));
    for (int64_t row = first; row < last; row++)
      choose(call, scores + row * call.experts, taken, call.chosen + row * call.top_k, call.shares + row * call.top_k);
  });
}

void perform(const Table& table, const Experts& whole) {
  const int64_t step = std::max<int64_t>(1, kMostAssigned / whole.top_k);
  for (int64_t first = 0; first < whole.rows; first += step) {
    Experts part = whole;
    part.x += first * whole.x_stride;
    part.chosen += first * whole.top_k;
    part.shares += first * whole.top_k;
    part.out += first * whole.inputs;
    part.rows = std::min(step, whole.rows - first);
    compute(table, part);
  }
}

void perform(const Table& table, const Narrow& call) {
  split(call.rows, call.rows * call.width > kWorthThreads,
        [&](int64_t first, int64_t last) { table.narrow(call, first, last); });
}

}  // namespace cpu_kernels
