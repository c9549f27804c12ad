// Scores of attention by vdpbf16ps: Q and K are multiplied as they lie.
#pragma once

#include <immintrin.h>

#include "decode_pairs.hpp"

namespace {

INLINE __m512bh load_pairs(const uint16_t* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }

struct PairDot {
  using Query = uint16_t;
  static constexpr int64_t space(int64_t) { return 0; }
  static const Query* queries(const uint16_t* q, int64_t, float*) { return q; }

  // q . k of G query heads for kScored keys, to scores [G][kBlock]. q: [G][dim].
  template <int G>
  static INLINE void score(const uint16_t* const* at, const Query* q, int64_t dim, float scale, const uint16_t* const* after,
                           float* scores) {
    Floats part[G][kScored];
    for (int64_t j = 0; j < kScored; j++) {
      if (after) read_ahead(after[j], dim);
      __m512 acc[G] = {};
      for (int64_t d = 0; d < dim; d += kPair) {
        const __m512bh k = load_pairs(at[j] + d);
        for (int g = 0; g < G; g++) acc[g] = _mm512_dpbf16_ps(acc[g], k, load_pairs(q + g * dim + d));
      }
      for (int g = 0; g < G; g++) part[g][j] = reinterpret_cast<Floats>(acc[g]);
    }
    for (int g = 0; g < G; g++) save(scores + g * kBlock, sums(part[g]) * scale);
  }
};

size_t decode_scratch512(const Attend& a) { return has_pairs(a) ? pairs_scratch<PairDot>(a) : decode_scratch(a); }

void decode512(const Attend& a, int64_t row, int64_t from, int64_t to, void* scratch) {
  if (has_pairs(a)) decode_pairs<PairDot>(a, row, from, to, static_cast<float*>(scratch));
  else decode(a, row, from, to, scratch);
}

}  // namespace
