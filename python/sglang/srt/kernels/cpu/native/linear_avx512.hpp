// Linear layers by vdpbf16ps: two products and a sum in each float32 lane.
#pragma once

#include <immintrin.h>

#include "linear_epilogue.hpp"

namespace {

constexpr int64_t kRowsAtOnce = 6;  // 6 rows x 4 vectors = 24 sums, which with 4 weights and a broadcast fill 29 of 32
constexpr int64_t kAheadBytes = 8192;

// R rows by a whole strip. With one row the sums are kept twice, or the chain of additions would be the limit.
template <int R> INLINE void multiply512(const Linear& a, int64_t first, const uint16_t* weight, bool cold, float* sums) {
  constexpr int kCopies = R == 1 ? 2 : 1;
  __m512 acc[kCopies][R][4];
  for (auto& copy : acc)
    for (auto& row : copy)
      for (auto& v : row) v = _mm512_setzero_ps();
  const uint16_t* x = a.x + first * a.x_stride;
  for (int64_t k = 0; k < a.inputs; k += 2 * kCopies)
    for (int copy = 0; copy < kCopies; copy++, weight += 2 * kStrip) {
      if (cold)
        for (int v = 0; v < 4; v++) _mm_prefetch(reinterpret_cast<const char*>(weight + v * 32) + kAheadBytes, _MM_HINT_T1);
      __m512bh w[4];
      for (int v = 0; v < 4; v++) w[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight + v * 32));
      for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, x + r * a.x_stride + k + 2 * copy, 4);
        const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int v = 0; v < 4; v++) acc[copy][r][v] = _mm512_dpbf16_ps(acc[copy][r][v], w[v], both);
      }
    }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 4; v++) {
      const __m512 total = kCopies == 1 ? acc[0][r][v] : _mm512_add_ps(acc[0][r][v], acc[kCopies - 1][r][v]);
      _mm512_storeu_ps(sums + r * kStrip + v * 16, total);
    }
}

INLINE void linear_rows512(const Linear& a, int64_t strip, int64_t first, int64_t rows, bool cold, float* sums) {
  const uint16_t* weight = a.weight + strip * kStrip * a.inputs;
  switch (rows) {
    case 1: multiply512<1>(a, first, weight, cold, sums); break;
    case 2: multiply512<2>(a, first, weight, cold, sums); break;
    case 3: multiply512<3>(a, first, weight, cold, sums); break;
    case 4: multiply512<4>(a, first, weight, cold, sums); break;
    case 5: multiply512<5>(a, first, weight, cold, sums); break;
    default: multiply512<6>(a, first, weight, cold, sums);
  }
  finish(a, strip, first, rows, sums);
}

size_t linear_scratch512(const Linear&) { return kRowsAtOnce * kStrip * sizeof(float); }

void linear512(const Linear& a, int64_t first_strip, int64_t last_strip, void* scratch) {
  const int64_t blocks = (a.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t at_once = (a.rows + blocks - 1) / blocks;  // 8 rows as 4 and 4, not as 6 and 2
  for (int64_t strip = first_strip; strip < last_strip; strip++)
    for (int64_t first = 0; first < a.rows; first += at_once)
      linear_rows512(a, strip, first, least(at_once, a.rows - first), first == 0, static_cast<float*>(scratch));
}

}  // namespace
