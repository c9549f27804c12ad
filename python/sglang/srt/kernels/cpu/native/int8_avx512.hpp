// Int8 weights for arithmetic in bfloat16, in which every int8 is exact.
#pragma once

#include <immintrin.h>

#include "linear_epilogue.hpp"

namespace {

// 32 weights of int8.
INLINE __m512bh expand(const int8_t* p) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16))));
  return _mm512_cvtne2ps_pbh(high, low);
}

// The bfloat16 weights of a strip: where they lie, or expanded from int8 into `space`, kStrip * inputs elements. 16 at a time
// by conversions that the compiler chose, this took four times as long as 16 rows' products (Zen 4).
INLINE const uint16_t* strip_of(const Linear& a, int64_t strip, uint16_t* space) {
  const int64_t size = kStrip * a.inputs;
  if (!a.scales) return a.weight + strip * size;
  const int8_t* from = reinterpret_cast<const int8_t*>(a.weight) + strip * size;
  for (int64_t i = 0; i < size; i += 32) _mm512_store_si512(space + i, reinterpret_cast<__m512i>(expand(from + i)));
  return space;
}

INLINE size_t strip_space(const Linear& a) { return a.scales ? static_cast<size_t>(kStrip * a.inputs) * 2 : 0; }

}  // namespace
