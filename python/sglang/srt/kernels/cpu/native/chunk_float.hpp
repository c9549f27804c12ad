// A chunk's products in float32 arithmetic, for CPUs without bfloat16 instructions: K and V are widened first.
#pragma once

#include "chunk.hpp"
#include "decode_float.hpp"

namespace {

struct FloatProducts {
  static constexpr float kBase = 1.0f;  // weights are powers of e
  static constexpr int kWide = 2;  // vectors of lanes at once: with kTileRows rows they are 12 sums
  int64_t dim;
  float* q;       // [kLanes / (kWide * LANES)][dim][kWide * LANES]
  float* wide;   // [kTileKeys][dim] of K, then of V
  float* scores;  // [kTileKeys][kLanes], then the weights
  float* out;     // [dim][kLanes]

  static size_t space(int64_t dim) {
    return static_cast<size_t>(2 * dim * kLanes + kTileKeys * (dim + kLanes)) * sizeof(float);
  }
  FloatProducts(void* memory, int64_t size) : dim(size) {
    q = static_cast<float*>(memory);
    wide = q + dim * kLanes;
    scores = wide + kTileKeys * dim;
    out = scores + kTileKeys * kLanes;
  }

  template <int N> INLINE void pack_queries(const uint16_t* const* query_of) const {
    for (int v = 0; v < N; v++)
      for (int64_t d = 0; d < dim; d += LANES) {
        Words block[LANES];
        for (int i = 0; i < LANES; i++) block[i] = as_words(load(query_of[v * LANES + i] + d));
        transpose(block);
        float* to = q + (v / kWide * dim + d) * kWide * LANES + v % kWide * LANES;
        for (int i = 0; i < LANES; i++) save(to + i * kWide * LANES, as_floats(block[i]));
      }
  }

  INLINE void widen_rows(const uint16_t* const* at, int64_t plane, int64_t n) const {
    for (int64_t key = 0; key < n; key++)
      for (int64_t d = 0; d < dim; d += LANES) save(wide + key * dim + d, load(at[key] + plane + d));
  }

  // out[r] = out[r] * factor + the sum over k of row(r, k) times the k-th columns, which are `apart` floats apart. Without
  // factor what out held is forgotten.
  template <int R, typename F>
  static INLINE void multiply_columns(int64_t count, F&& row, const float* columns, int64_t apart, const Floats* factor,
                                      float* out) {
    Floats acc[R][kWide];
    for (int r = 0; r < R; r++)
      for (int v = 0; v < kWide; v++) acc[r][v] = factor ? load(out + r * kLanes + v * LANES) * factor[v] : Floats{};
    for (int64_t k = 0; k < count; k++) {
      Floats w[kWide];
      for (int v = 0; v < kWide; v++) w[v] = load(columns + k * apart + v * LANES);
      for (int r = 0; r < R; r++) {
        const Floats each = broadcast(row(r, k));
        for (int v = 0; v < kWide; v++) acc[r][v] += w[v] * each;
        for (int v = 0; v < kWide; v++) HOLD(acc[r][v]);
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < kWide; v++) save(out + r * kLanes + v * LANES, acc[r][v]);
  }

  template <int N> INLINE void score(const uint16_t* const* at, int64_t n) const {
    widen_rows(at, 0, n);
    for (int v = 0; v < N; v += kWide)
      each_rows(n, [&](int64_t first, auto rows) INLINE_LAMBDA {
        const float* keys = wide + first * dim;
        const auto key = [&](int64_t r, int64_t k) INLINE_LAMBDA { return keys[r * dim + k]; };
        multiply_columns<rows()>(dim, key, q + v * LANES * dim, kWide * LANES, nullptr, scores + first * kLanes + v * LANES);
      });
  }

  static INLINE Floats power(Floats x) { return exponential(x); }

  // Weights of a vector of lanes in place of its scores; their sum.
  INLINE Floats weigh(int vector, int64_t n, float scale, Floats shift) const {
    float* column = scores + vector * LANES;
    Floats total{};
    for (int64_t key = 0; key < n; key++) {
      const Floats weight = power(load(column + key * kLanes) * scale - shift);
      save(column + key * kLanes, weight);
      total += weight;
    }
    return total;
  }

  template <int N> INLINE void mix(const uint16_t* const* at, int64_t plane, int64_t n, const Floats* factor) const {
    widen_rows(at, plane, n);
    for (int v = 0; v < N; v += kWide)
      each_rows(dim, [&](int64_t first, auto rows) INLINE_LAMBDA {
        const float* values = wide + first;
        const auto value = [&](int64_t r, int64_t k) INLINE_LAMBDA { return values[k * dim + r]; };
        multiply_columns<rows()>(n, value, scores + v * LANES, kLanes, factor ? factor + v : nullptr,
                                 out + first * kLanes + v * LANES);
      });
  }
};

size_t chunk_scratch_float(const Attend& a) { return FloatProducts::space(a.pages.dim); }

void chunk_float(const Attend& a, const Tile& tile, void* scratch) { chunk_by<FloatProducts>(a, tile, scratch); }

}  // namespace
