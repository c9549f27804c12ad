// Linear layers in float32 arithmetic, for CPUs without bfloat16 instructions.
#pragma once

#include "linear_epilogue.hpp"

namespace {

constexpr int64_t kConverted = 256;  // rows of x held as float32 at a time: 1.5 MB at 1,536 inputs

size_t linear_scratch(const Linear& a) {
  return static_cast<size_t>(least(a.rows, kConverted) * a.inputs) * sizeof(float) + strip_space(a);
}

// R rows by two vectors of outputs. weight points at the first of those outputs.
template <int R> INLINE void multiply(const float* x, int64_t inputs, const uint16_t* weight, float* sums) {
  Floats low[R] = {}, high[R] = {};
  for (int64_t k = 0; k < inputs; k += 2, weight += 2 * kStrip) {
    Words a, b;  // each a pair of inputs: the even one in the low half
    memcpy(&a, weight, sizeof a);
    memcpy(&b, weight + 2 * LANES, sizeof b);
    const Floats even_a = as_floats(a << 16), odd_a = as_floats(a & 0xffff0000u);
    const Floats even_b = as_floats(b << 16), odd_b = as_floats(b & 0xffff0000u);
    for (int r = 0; r < R; r++) {
      const float even = x[r * inputs + k], odd = x[r * inputs + k + 1];
      low[r] += even_a * even;
      high[r] += even_b * even;
      low[r] += odd_a * odd;
      high[r] += odd_b * odd;
    }
  }
  for (int r = 0; r < R; r++) {
    save(sums + r * kStrip, low[r]);
    save(sums + r * kStrip + LANES, high[r]);
  }
}

void linear(const Linear& a, int64_t first_strip, int64_t last_strip, void* scratch) {
  float* x = static_cast<float*>(scratch);
  uint16_t* space = reinterpret_cast<uint16_t*>(x + least(a.rows, kConverted) * a.inputs);
  for (int64_t first = 0; first < a.rows; first += kConverted) {
    const int64_t rows = least(kConverted, a.rows - first);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t k = 0; k < a.inputs; k += LANES) save(x + r * a.inputs + k, load(a.x + (first + r) * a.x_stride + k));
    for (int64_t strip = first_strip; strip < last_strip; strip++) {
      const uint16_t* weight = strip_of(a, strip, space);
      for (int64_t r = 0; r < rows; r += 4) {
        float sums[4 * kStrip];
        const float* from = x + r * a.inputs;
        for (int64_t part = 0; part < kStrip; part += 2 * LANES) {
          const uint16_t* w = weight + 2 * part;
          switch (least(4, rows - r)) {
            case 1: multiply<1>(from, a.inputs, w, sums + part); break;
            case 2: multiply<2>(from, a.inputs, w, sums + part); break;
            case 3: multiply<3>(from, a.inputs, w, sums + part); break;
            default: multiply<4>(from, a.inputs, w, sums + part);
          }
        }
        finish(a, strip, first + r, least(4, rows - r), sums);
      }
    }
  }
}

}  // namespace
