// From float32 sums to bfloat16 outputs.
#pragma once

#include "vector.hpp"

namespace {

using cpu_kernels::kStrip;
using cpu_kernels::Linear;

// sums: [rows][kStrip], of one strip and of the rows from first_row on. unit: what int8 weights were multiplied in.
INLINE void finish(const Linear& a, int64_t strip, int64_t first_row, int64_t rows, const float* sums, float unit = 1.0f) {
  const int64_t start = strip * kStrip;
  const int64_t width = least(kStrip, a.outputs - start);
  const uint16_t* bias = a.bias ? a.bias + start : nullptr;
  for (int64_t r = 0; r < rows; r++) {
    uint16_t* out = a.out + (first_row + r) * a.out_stride + start;
    const float* from = sums + r * kStrip;
    each(width, [&](int64_t i, auto get, auto put) INLINE_LAMBDA {
      const Floats total = a.scales ? load(from + i) * (load(a.scales + start + i) * unit) : load(from + i);
      put(out + i, bias ? total + get(bias + i) : total);
    });
  }
}

}  // namespace
