// A token of each row, drawn from what top-k, top-p and min-p leave of its distribution.
#pragma once

#include <algorithm>

#include "elementwise.hpp"

namespace {

// Weights are summed in blocks, a block in float32 and their sums in float64: that is as exact as float64 throughout for
// what is drawn, and the block of a token is found without looking at the others' tokens.
constexpr int64_t kDrawBlock = 512;

// Weights from 0 to 1 by exponent and four bits of fraction, in rising order.
constexpr int kFractionBits = 4;
constexpr int64_t kBuckets = (0x3f800000 >> (23 - kFractionBits)) + 1;
INLINE int64_t bucket_of(float weight) {
  uint32_t bits;
  memcpy(&bits, &weight, 4);
  return bits >> (23 - kFractionBits);
}

struct Bucket {
  double mass;
  int64_t count;
};

// A row's tokens: exp((x - largest) / temperature), and where they are worked on.
struct Weights {
  float* each;    // [size, rounded up to whole blocks of zeros]
  double* sums;   // [blocks]
  float* sorted;  // [size]
  Bucket* buckets;
  int64_t size;

  int64_t blocks() const { return (size + kDrawBlock - 1) / kDrawBlock; }
};

size_t draw_scratch(const Draw& a) {
  const auto blocks = static_cast<size_t>((a.size + kDrawBlock - 1) / kDrawBlock);
  return blocks * (kDrawBlock * 2 * sizeof(float) + sizeof(double)) + kBuckets * sizeof(Bucket);
}

Weights weights_in(const Draw& a, void* scratch) {
  Weights w{nullptr, nullptr, nullptr, static_cast<Bucket*>(scratch), a.size};
  w.sums = reinterpret_cast<double*>(w.buckets + kBuckets);
  w.each = reinterpret_cast<float*>(w.sums + w.blocks());
  w.sorted = w.each + w.blocks() * kDrawBlock;
  return w;
}

template <typename T> float largest_of(const T* x, int64_t size) {
  Floats best = broadcast(-__builtin_inff());
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) best = larger(load(x + i), best);
  float most = largest(best);
  for (; i < size; i++) most = value_of(x[i]) > most ? value_of(x[i]) : most;
  return most;
}

// Fills `each`; NaN has no weight.
template <typename T> void weigh(const T* x, float most, float temperature, const Weights& w) {
  const float factor = 1.0f / temperature;
  each(w.size, [&](int64_t i, auto get, auto) INLINE_LAMBDA {
    const Floats from = get(x + i);
    Floats weight = exponential((from - most) * factor);
    weight = from == from ? weight : Floats{};
    if (i + LANES <= w.size) save(w.each + i, weight);
    else save_some(w.each + i, weight, w.size - i);
  });
  std::fill(w.each + w.size, w.each + w.blocks() * kDrawBlock, 0.0f);
}

// Sums of the weights of at least `least_kept`, by blocks, and of all blocks.
double add_up(const Weights& w, float least_kept) {
  double total = 0;
  for (int64_t block = 0; block < w.blocks(); block++) {
    Floats part{};
    for (int64_t i = 0; i < kDrawBlock; i += LANES) {
      const Floats weight = load(w.each + block * kDrawBlock + i);
      part += weight >= least_kept ? weight : Floats{};
    }
    total += w.sums[block] = sum(part);
  }
  return total;
}

void fill_buckets(const Weights& w) {
  std::fill(w.buckets, w.buckets + kBuckets, Bucket{});
  for (int64_t i = 0; i < w.size; i++) {
    Bucket& bucket = w.buckets[bucket_of(w.each[i])];
    bucket.mass += w.each[i];
    bucket.count++;
  }
}

// Goes through the weights from the largest down until `count` of them or a mass of `budget` are passed.
struct Descent {
  double mass = 0;  // of those passed
  float last = 0;   // the last one passed
};
Descent descend(const Weights& w, int64_t count, double budget) {
  Descent at;
  int64_t passed = 0;
  for (int64_t b = kBuckets - 1; b >= 0; b--) {
    const Bucket& bucket = w.buckets[b];
    if (!bucket.count) continue;
    const bool whole = passed + bucket.count < count && at.mass + bucket.mass < budget;
    if (whole) {
      passed += bucket.count;
      at.mass += bucket.mass;
      continue;
    }
    int64_t members = 0;
    for (int64_t i = 0; i < w.size; i++)
      if (bucket_of(w.each[i]) == b) w.sorted[members++] = w.each[i];
    std::sort(w.sorted, w.sorted + members, [](float x, float y) { return x > y; });
    for (int64_t i = 0; i < members; i++) {
      at.mass += w.sorted[i];
      at.last = w.sorted[i];
      if (++passed == count || at.mass >= budget) return at;
    }
  }
  return at;
}

// The smallest weight that top-k and top-p keep, and with it all that tie; top-p counts the mass that top-k left.
float least_of_top(const Weights& w, int64_t top_k, float top_p, double total) {
  fill_buckets(w);
  const bool cut = top_k < w.size;
  const Descent most = cut ? descend(w, top_k, 2 * total + 1) : Descent{total, 0.0f};
  if (top_p >= 1.0f) return most.last;
  return std::max(most.last, descend(w, top_k, static_cast<double>(top_p) * most.mass).last);
}

// The first token behind which more than `target` of the kept weights lies.
int64_t token_at(const Weights& w, float least_kept, double target) {
  double passed = 0;
  int64_t found = 0;
  for (int64_t block = 0; block < w.blocks(); block++) {
    if (!w.sums[block] || (passed + w.sums[block] <= target && block + 1 < w.blocks())) {
      passed += w.sums[block];
      continue;
    }
    // Added one by one a block may come to a little less than its sum: then it is the last that is kept.
    for (int64_t i = block * kDrawBlock; i < least((block + 1) * kDrawBlock, w.size); i++) {
      if (!(w.each[i] > 0) || w.each[i] < least_kept) continue;
      found = i;
      passed += w.each[i];
      if (passed > target) return found;
    }
    return found;
  }
  return found;
}

template <typename T> int64_t draw_row(const Draw& a, int64_t row, void* scratch) {
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  const float most = largest_of(x, a.size);
  if (a.temperature[row] == 0.0f || __builtin_isinf(most)) return largest_at(x, a.size);
  const Weights w = weights_in(a, scratch);
  weigh(x, most, a.temperature[row], w);
  float least_kept = a.min_p[row];
  // top-k and top-p look at all tokens, min-p or not.
  if (a.top_k[row] < a.size || a.top_p[row] < 1.0f)
    least_kept = std::max(least_kept, least_of_top(w, a.top_k[row], a.top_p[row], add_up(w, 0.0f)));
  return token_at(w, least_kept, a.uniform[row] * add_up(w, least_kept));
}

void draw(const Draw& a, int64_t first, int64_t last, void* scratch) {
  for (int64_t row = first; row < last; row++)
    a.out[row] = a.type == Type::kFloat32 ? draw_row<float>(a, row, scratch) : draw_row<uint16_t>(a, row, scratch);
}

}  // namespace
