// Square blocks of 32-bit lanes.
#pragma once

#include "vector.hpp"

namespace {

// In every pair of vectors STEP apart, the second half of 2 * STEP lanes of one changes places with the first half of the
// other's.
template <int STEP, size_t... LANE> INLINE void exchange(Words* v, std::index_sequence<LANE...>) {
  for (int i = 0; i < LANES; i++) {
    if (i & STEP) continue;
    const Words a = v[i], b = v[i + STEP];
    v[i] = __builtin_shufflevector(a, b, (LANE & STEP ? LANES + LANE - STEP : LANE)...);
    v[i + STEP] = __builtin_shufflevector(a, b, (LANE & STEP ? LANES + LANE : LANE + STEP)...);
  }
}

// Of LANES vectors, lane j of vector i changes places with lane i of vector j.
template <int STEP = LANES / 2> INLINE void transpose(Words* v) {
  exchange<STEP>(v, std::make_index_sequence<LANES>());
  if constexpr (STEP > 1) transpose<STEP / 2>(v);
}

}  // namespace
