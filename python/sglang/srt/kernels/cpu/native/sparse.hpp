// A sparse layer's arithmetic beside its products: scores of experts, weighted sums of what they computed, rounding.
#pragma once

#include "vector.hpp"

namespace {

using namespace cpu_kernels;

constexpr int64_t kScorePanel = 512;  // inputs by which all rows are scored in turn: with 4 experts 8 KiB, a quarter of L1

// R rows of x times the vectors of E experts, added to sums (`fresh`: in place of them).
template <int R, int E, typename T>
INLINE void score(const T* x, int64_t x_stride, const float* weight, int64_t weight_stride, int64_t inputs, bool fresh, float* out,
                  int64_t out_stride) {
  Floats sums[R][E] = {};
  int64_t i = 0;
  for (; i + LANES <= inputs; i += LANES)
    for (int r = 0; r < R; r++) {
      const Floats v = load(x + r * x_stride + i);
      for (int e = 0; e < E; e++) sums[r][e] += v * load(weight + e * weight_stride + i);
      for (int e = 0; e < E; e++) HOLD(sums[r][e]);
    }
  // By single numbers: a last, shorter vector would put all sums on the stack (gcc 12).
  for (int r = 0; r < R; r++)
    for (int e = 0; e < E; e++) {
      float total = sum(sums[r][e]) + (fresh ? 0.0f : out[r * out_stride + e]);
      for (int64_t k = i; k < inputs; k++) total += value_of(x[r * x_stride + k]) * weight[e * weight_stride + k];
      out[r * out_stride + e] = total;
    }
}

template <int E, typename T> void score_experts(const Route& a, int64_t expert, float* scores) {
  for (int64_t k = 0; k < a.inputs; k += kScorePanel) {
    const int64_t inputs = least(kScorePanel, a.inputs - k);
    const float* weight = a.weight + expert * a.inputs + k;
    const T* x = static_cast<const T*>(a.x) + k;
    int64_t row = 0;
    for (; row + 2 <= a.rows; row += 2)
      score<2, E>(x + row * a.x_stride, a.x_stride, weight, a.inputs, inputs, k == 0, scores + row * a.experts + expert, a.experts);
    if (row < a.rows)
      score<1, E>(x + row * a.x_stride, a.x_stride, weight, a.inputs, inputs, k == 0, scores + row * a.experts + expert, a.experts);
  }
}

template <typename T> void score_blocks(const Route& a, float* scores, int64_t first, int64_t last) {
  for (int64_t expert = first * kExpertsAtOnce, end = least(last * kExpertsAtOnce, a.experts); expert < end;) {
    const bool whole = expert + kExpertsAtOnce <= a.experts;
    whole ? score_experts<kExpertsAtOnce, T>(a, expert, scores) : score_experts<1, T>(a, expert, scores);
    expert += whole ? kExpertsAtOnce : 1;
  }
}

void scores(const Route& a, float* out, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? score_blocks<float>(a, out, first, last) : score_blocks<uint16_t>(a, out, first, last);
}

void weigh(const Weigh& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const int32_t* places = a.places + row * a.top_k;
    const float* shares = a.shares + row * a.top_k;
    float* out = a.out + row * a.width;
    each(a.width, [&](int64_t i, auto get, auto put) INLINE_LAMBDA {
      Floats total{};
      for (int64_t k = 0; k < a.top_k; k++)
        if (places[k] >= 0) total += broadcast(shares[k]) * get(a.x + places[k] * a.x_stride + i);
      put(out + i, total);
    });
  }
}

template <typename T> void narrow_rows(const Narrow& a, int64_t first, int64_t last) {
  const int64_t start = first * a.width;
  const float* x = a.x + start;
  const T* added = a.added ? static_cast<const T*>(a.added) + start : nullptr;
  T* out = static_cast<T*>(a.out) + start;
  each((last - first) * a.width, [&](int64_t i, auto get, auto put) INLINE_LAMBDA {
    put(out + i, added ? get(x + i) + get(added + i) : get(x + i));
  });
}

void narrow(const Narrow& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? narrow_rows<float>(a, first, last) : narrow_rows<uint16_t>(a, first, last);
}

}  // namespace
