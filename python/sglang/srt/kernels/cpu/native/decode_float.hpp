// Scores of attention in float32 arithmetic, for CPUs without bfloat16 instructions.
#pragma once

#include "decode_pairs.hpp"

namespace {

struct FloatDot {
  using Query = float;
  static constexpr int64_t space(int64_t dim) { return dim; }

  // Widened, of each kPair dimensions first the even ones.
  static const Query* queries(const uint16_t* q, int64_t size, float* space) {
    for (int64_t d = 0; d < size; d += kPair) {
      Words both;
      memcpy(&both, q + d, sizeof both);
      save(space + d, as_floats(both << 16));
      save(space + d + LANES, as_floats(both & 0xffff0000u));
    }
    return space;
  }

  // q . k of G query heads for kScored keys, to scores [G][kBlock]. Several keys at once, so that there are 8 sums to add
  // to: each addition waits 4 cycles for the one before it.
  template <int G>
  static INLINE void score(const uint16_t* const* at, const Query* q, int64_t dim, float scale, const uint16_t* const* after,
                           float* scores) {
    constexpr int kKeys = G == 1 ? 8 : G == 2 ? 4 : 2;
    Floats part[G][kScored];
    for (int64_t j = 0; j < kScored; j += kKeys) {
      if (after)
        for (int key = 0; key < kKeys; key++) read_ahead(after[j + key], dim);
      Floats acc[kKeys][G] = {};
      for (int64_t d = 0; d < dim; d += kPair)
        for (int half = 0; half < 2; half++) {  // the even dimensions, then the odd ones
          Floats asked[G];
          for (int g = 0; g < G; g++) asked[g] = load(q + g * dim + d + half * LANES);
          for (int g = 0; g < G; g++) HOLD(asked[g]);
          for (int key = 0; key < kKeys; key++) {
            Words both;
            memcpy(&both, at[j + key] + d, sizeof both);
            const Floats k = half ? as_floats(both & 0xffff0000u) : as_floats(both << 16);
            for (int g = 0; g < G; g++) acc[key][g] += k * asked[g];
            for (int g = 0; g < G; g++) HOLD(acc[key][g]);
          }
        }
      for (int key = 0; key < kKeys; key++)
        for (int g = 0; g < G; g++) part[g][j + key] = acc[key][g];
    }
    for (int g = 0; g < G; g++)
      for (int64_t j = 0; j < kScored; j += LANES) save(scores + g * kBlock + j, sums(part[g] + j) * scale);
  }
};

size_t decode_scratch_float(const Attend& a) { return has_pairs(a) ? pairs_scratch<FloatDot>(a) : decode_scratch(a); }

void decode_float(const Attend& a, int64_t row, int64_t from, int64_t to, void* scratch) {
  if (has_pairs(a)) decode_pairs<FloatDot>(a, row, from, to, static_cast<float*>(scratch));
  else decode(a, row, from, to, scratch);
}

}  // namespace
