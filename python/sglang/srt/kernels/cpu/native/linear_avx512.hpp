// Linear layers by vdpbf16ps: two products and a sum in each float32 lane.
#pragma once

#include <immintrin.h>

#include "int8_avx512.hpp"

namespace {

constexpr int64_t kRowsAtOnce = 6;  // 6 rows x 4 vectors = 24 sums, which with 4 weights and a broadcast fill 29 of 32
constexpr int64_t kAheadBytes = 8192;


// R rows by a whole strip. With few rows the sums are kept twice, or the chain of additions would be the limit.
// `ahead` is read into L2 meanwhile, P lines for each pair of inputs.
template <int R, int P> INLINE void multiply512(const Linear& a, int64_t first, const uint16_t* weight, const char* ahead, float* sums) {
  constexpr int kCopies = R <= 2 ? 2 : 1;
  constexpr int kUnroll = 2;
  __m512 acc[kCopies][R][4];
  for (auto& copy : acc)
    for (auto& row : copy)
      for (auto& v : row) v = _mm512_setzero_ps();
  const uint16_t* x = a.x + first * a.x_stride;
  for (int64_t k = 0; k < a.inputs; k += 2 * kUnroll)
    for (int copy = 0; copy < kUnroll; copy++, weight += 2 * kStrip) {
      for (int v = 0; v < P; v++) _mm_prefetch(ahead + v * 64, _MM_HINT_T1);
      ahead += P * 64;
      __m512bh w[4];
      for (int v = 0; v < 4; v++) w[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weight + v * 32));
      for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, x + r * a.x_stride + k + 2 * copy, 4);
        const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int v = 0; v < 4; v++) acc[copy % kCopies][r][v] = _mm512_dpbf16_ps(acc[copy % kCopies][r][v], w[v], both);
      }
    }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 4; v++) {
      const __m512 total = kCopies == 1 ? acc[0][r][v] : _mm512_add_ps(acc[0][r][v], acc[kCopies - 1][r][v]);
      _mm512_storeu_ps(sums + r * kStrip + v * 16, total);
    }
}

// Few rows by a strip of int8, which is expanded in registers: memory gives half as many bytes a product.
template <int R> INLINE void multiply_bytes(const Linear& a, int64_t strip, float* sums) {
  const int8_t* weight = reinterpret_cast<const int8_t*>(a.weight) + strip * kStrip * a.inputs;
  __m512 acc[R][4];
  for (auto& row : acc)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (int64_t k = 0; k < a.inputs; k += 2, weight += 2 * kStrip) {
    _mm_prefetch(weight + kAheadBytes, _MM_HINT_T1);
    _mm_prefetch(weight + kAheadBytes + 64, _MM_HINT_T1);
    __m512bh w[4];
    for (int v = 0; v < 4; v++) w[v] = expand(weight + v * 32);
    for (int r = 0; r < R; r++) {
      int32_t pair;
      memcpy(&pair, a.x + r * a.x_stride + k, 4);
      const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      for (int v = 0; v < 4; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w[v], both);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < 4; v++) _mm512_storeu_ps(sums + r * kStrip + v * 16, acc[r][v]);
}

INLINE void linear_bytes(const Linear& a, int64_t strip, float* sums) {
  switch (a.rows) {
    case 1: multiply_bytes<1>(a, strip, sums); break;
    case 2: multiply_bytes<2>(a, strip, sums); break;
    case 3: multiply_bytes<3>(a, strip, sums); break;
    case 4: multiply_bytes<4>(a, strip, sums); break;
    case 5: multiply_bytes<5>(a, strip, sums); break;
    default: multiply_bytes<6>(a, strip, sums);
  }
  finish(a, strip, 0, a.rows, sums);
}

template <int P>
INLINE void linear_rows512(const Linear& a, const uint16_t* weight, int64_t strip, int64_t first, int64_t rows,
                           const char* ahead, float* sums) {
  switch (rows) {
    case 1: multiply512<1, P>(a, first, weight, ahead, sums); break;
    case 2: multiply512<2, P>(a, first, weight, ahead, sums); break;
    case 3: multiply512<3, P>(a, first, weight, ahead, sums); break;
    case 4: multiply512<4, P>(a, first, weight, ahead, sums); break;
    case 5: multiply512<5, P>(a, first, weight, ahead, sums); break;
    default: multiply512<6, P>(a, first, weight, ahead, sums);
  }
  finish(a, strip, first, rows, sums);
}

size_t linear_scratch512(const Linear& a) { return kRowsAtOnce * kStrip * sizeof(float) + strip_space(a); }

void linear512(const Linear& a, int64_t first_strip, int64_t last_strip, void* scratch) {
  float* sums = static_cast<float*>(scratch);
  uint16_t* space = reinterpret_cast<uint16_t*>(sums + kRowsAtOnce * kStrip);
  const int64_t blocks = (a.rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t at_once = (a.rows + blocks - 1) / blocks;  // 8 rows as 4 and 4, not as 6 and 2
  // A strip that is used more than once is in L2 after its first use; the next one is read there meanwhile. With 8 rows
  // that is 25 GB/s a thread, and 16 where each strip's first use waits for memory (Zen 4).
  const int64_t strip_bytes = kStrip * a.inputs * (a.scales ? 1 : 2);
  for (int64_t strip = first_strip; strip < last_strip; strip++) {
    if (a.scales && blocks == 1) {
      linear_bytes(a, strip, sums);
      continue;
    }
    const uint16_t* weight = strip_of(a, strip, space);
    const char* here = reinterpret_cast<const char*>(a.weight) + strip * strip_bytes;
    const char* next = here + strip_bytes;
    for (int64_t first = 0, block = 0; first < a.rows; first += at_once, block++) {
      const int64_t rows = least(at_once, a.rows - first);
      const char* half = next + least(block, 1) * strip_bytes / 2;
      if (blocks == 1) linear_rows512<4>(a, weight, strip, first, rows, here + kAheadBytes, sums);
      else if (a.scales && block < 2) linear_rows512<1>(a, weight, strip, first, rows, half, sums);
      else if (a.scales) linear_rows512<0>(a, weight, strip, first, rows, here, sums);
      else if (blocks <= 3) linear_rows512<2>(a, weight, strip, first, rows, half, sums);
      else if (block < 4) linear_rows512<1>(a, weight, strip, first, rows, next + block * strip_bytes / 4, sums);
      else linear_rows512<0>(a, weight, strip, first, rows, here, sums);
    }
  }
}

}  // namespace
