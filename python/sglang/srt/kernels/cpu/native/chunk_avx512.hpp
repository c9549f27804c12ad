// A chunk's products by vdpbf16ps: pairs of dimensions of K and Q, pairs of keys of V and weights. K is read where it lies.
#pragma once

#include <immintrin.h>

#include "chunk.hpp"
#include "decode_avx512.hpp"

namespace {

// R rows times packed columns, N vectors wide: out[r] = out[r] * factor + the products. `pair(r, k)` is a row's k-th
// pair. Without factor what out held is forgotten.
template <int R, int N, typename F>
INLINE void multiply_pairs(int64_t pairs, F&& pair, const uint32_t* packed, const Floats* factor, float* out) {
  __m512 acc[R][N];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < N; v++)
      acc[r][v] = factor ? reinterpret_cast<__m512>(load(out + r * kLanes + v * LANES) * factor[v]) : _mm512_setzero_ps();
  for (int64_t k = 0; k < pairs; k++) {
    __m512bh w[N];
    for (int v = 0; v < N; v++) w[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed + k * kLanes + v * LANES));
    for (int r = 0; r < R; r++) {
      int32_t two;
      memcpy(&two, pair(r, k), 4);
      const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
      for (int v = 0; v < N; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w[v], both);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < N; v++) _mm512_storeu_ps(out + r * kLanes + v * LANES, acc[r][v]);
}

// To bfloat16, the even one of a pair in the low half.
INLINE Words beside(Floats even, Floats odd) {
  const __m512bh halves = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even));
  const Words order = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                       0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
  return reinterpret_cast<Words>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(order), reinterpret_cast<__m512i>(halves)));
}

// Values of two tokens beside each other; a missing last one is zero.
INLINE void pack_values(const uint16_t* const* at, int64_t plane, int64_t n, int64_t dim, uint32_t* packed) {
  for (int64_t key = 0; key < n; key += 2) {
    const uint16_t* even = at[key] + plane;
    const uint16_t* odd = key + 1 < n ? at[key + 1] + plane : nullptr;
    for (int64_t d = 0; d < dim; d += LANES) {
      Halves low, high{};
      memcpy(&low, even + d, sizeof low);
      if (odd) memcpy(&high, odd + d, sizeof high);
      const Words both = __builtin_convertvector(low, Words) | (__builtin_convertvector(high, Words) << 16);
      memcpy(packed + key / 2 * dim + d, &both, sizeof both);
    }
  }
}

struct PairProducts {
  static constexpr float kBase = 1.44269504f;  // weights are powers of two
  int64_t dim;
  uint32_t* q;    // [dim / 2][kLanes] pairs
  uint32_t* v;    // [kTileKeys / 2][dim] pairs of tokens
  uint32_t* p;    // [kTileKeys / 2][kLanes] pairs of keys
  float* scores;  // [kTileKeys][kLanes]
  float* out;     // [dim][kLanes]

  static size_t space(int64_t dim) {
    return static_cast<size_t>(dim / 2 * kLanes + kTileKeys / 2 * (dim + kLanes) + (kTileKeys + dim) * kLanes) * 4;
  }
  PairProducts(void* memory, int64_t size) : dim(size) {
    q = static_cast<uint32_t*>(memory);
    v = q + dim / 2 * kLanes;
    p = v + kTileKeys / 2 * dim;
    scores = reinterpret_cast<float*>(p + kTileKeys / 2 * kLanes);
    out = scores + kTileKeys * kLanes;
  }

  template <int N> INLINE void pack_queries(const uint16_t* const* query_of) const {
    for (int64_t lane = 0; lane < N * LANES; lane += LANES)
      for (int64_t d = 0; d < dim; d += kPair) {
        Words block[LANES];
        for (int i = 0; i < LANES; i++) memcpy(&block[i], query_of[lane + i] + d, sizeof(Words));
        transpose(block);
        for (int i = 0; i < LANES; i++) memcpy(q + (d / 2 + i) * kLanes + lane, &block[i], sizeof(Words));
      }
  }

  template <int N> INLINE void score(const uint16_t* const* at, int64_t n) const {
    each_rows(n, [&](int64_t first, auto rows) INLINE_LAMBDA {
      const auto key = [&](int64_t r, int64_t k) INLINE_LAMBDA { return at[first + r] + 2 * k; };
      multiply_pairs<rows(), N>(dim / 2, key, q, nullptr, scores + first * kLanes);
    });
  }

  // 2^x within 2^-12, enough for what is rounded to bfloat16; 0 far below. x <= 0.
  static INLINE Floats power(Floats x) {
    const __m512 n = _mm512_roundscale_ps(reinterpret_cast<__m512>(x), 0);
    const Floats f = x - reinterpret_cast<Floats>(n);  // -0.5 .. 0.5
    Floats y = f * 0.0096181291f + 0.0555041087f;  // Taylor's series of 2^f to the fourth power
    y = y * f + 0.2402265070f;
    y = y * f + 0.6931471806f;
    y = y * f + 1.0f;
    return reinterpret_cast<Floats>(_mm512_scalef_ps(reinterpret_cast<__m512>(y), n));
  }

  // Weights of a vector of lanes, in bfloat16, pairs of keys beside each other; their sum.
  INLINE Floats weigh(int vector, int64_t n, float scale, Floats shift) const {
    const float* column = scores + vector * LANES;
    Floats total{};
    for (int64_t key = 0; key < n; key += 2) {
      const Floats even = power(load(column + key * kLanes) * scale - shift);
      const Floats odd = key + 1 < n ? power(load(column + (key + 1) * kLanes) * scale - shift) : Floats{};
      total += even + odd;
      const Words both = beside(even, odd);
      memcpy(p + key / 2 * kLanes + vector * LANES, &both, sizeof both);
    }
    return total;
  }

  template <int N> INLINE void mix(const uint16_t* const* at, int64_t plane, int64_t n, const Floats* factor) const {
    pack_values(at, plane, n, dim, v);
    each_rows(dim, [&](int64_t first, auto rows) INLINE_LAMBDA {
      const auto value = [&](int64_t r, int64_t k) INLINE_LAMBDA { return v + k * dim + first + r; };
      multiply_pairs<rows(), N>((n + 1) / 2, value, p, factor, out + first * kLanes);
    });
  }
};

size_t chunk_scratch512(const Attend& a) { return PairProducts::space(a.pages.dim); }

void chunk512(const Attend& a, const Tile& tile, void* scratch) { chunk_by<PairProducts>(a, tile, scratch); }

}  // namespace
