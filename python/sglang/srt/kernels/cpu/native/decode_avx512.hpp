// Attention of one query a row over bfloat16 pages by vdpbf16ps: Q and K are multiplied as they lie, V is widened to
// float32, and so are the weights it is mixed with. Dimensions are a multiple of 32.
#pragma once

#include <immintrin.h>

#include "decode.hpp"

namespace {

constexpr int64_t kPair = 32;  // bfloat16 values of a vector

INLINE __m512bh load_pairs(const uint16_t* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }

// q . k of G query heads for kScored keys, to scores [G][kBlock]. q: [G][dim].
template <int G>
INLINE void score_pairs(const uint16_t* const* at, const uint16_t* q, int64_t dim, float scale, float* scores) {
  Floats part[G][kScored];
  for (int64_t j = 0; j < kScored; j++) {
    __m512 acc[G] = {};
    for (int64_t d = 0; d < dim; d += kPair) {
      const __m512bh k = load_pairs(at[j] + d);
      for (int g = 0; g < G; g++) acc[g] = _mm512_dpbf16_ps(acc[g], k, load_pairs(q + g * dim + d));
    }
    for (int g = 0; g < G; g++) part[g][j] = reinterpret_cast<Floats>(acc[g]);
  }
  for (int g = 0; g < G; g++) save(scores + g * kBlock, sums(part[g]) * scale);
}

// Adds the sum over n keys of p[j] * value[j] to V vectors of 32 dimensions of out [G][dim], after a rescale by
// factor[g]. Of 32 dimensions out holds the 16 even ones and then the 16 odd ones: they are a shift and a mask away.
template <int G, int V>
INLINE void mix_pairs(const uint16_t* const* at, int64_t n, const float* p, const float* factor, int64_t dim, float* out) {
  Floats acc[G][V][2];
  for (int g = 0; g < G; g++)
    for (int v = 0; v < 2 * V; v++) acc[g][v / 2][v % 2] = load(out + g * dim + v * LANES) * factor[g];
  for (int64_t j = 0; j < n; j++)
    for (int v = 0; v < V; v++) {
      Words both;
      memcpy(&both, at[j] + v * kPair, sizeof both);
      const Floats even = as_floats(both << 16), odd = as_floats(both & 0xffff0000u);
      for (int g = 0; g < G; g++) {
        acc[g][v][0] += even * p[g * kBlock + j];
        acc[g][v][1] += odd * p[g * kBlock + j];
      }
    }
  for (int g = 0; g < G; g++)
    for (int v = 0; v < 2 * V; v++) save(out + g * dim + v * LANES, acc[g][v / 2][v % 2]);
}

// All dimensions; `at` is moved on.
template <int G>
INLINE void mix_all(const uint16_t** at, int64_t plane, int64_t n, const float* p, const float* factor, int64_t dim,
                    float* out) {
  constexpr int kWide = G <= 2 ? 4 : 2;  // 16 sums in registers
  for (int64_t j = 0; j < n; j++) at[j] += plane;
  int64_t d = 0;
  for (; d + kWide * kPair <= dim; d += kWide * kPair) {
    mix_pairs<G, kWide>(at, n, p, factor, dim, out + d);
    for (int64_t j = 0; j < n; j++) at[j] += kWide * kPair;
  }
  for (; d < dim; d += kPair) {
    mix_pairs<G, 1>(at, n, p, factor, dim, out + d);
    for (int64_t j = 0; j < n; j++) at[j] += kPair;
  }
}

// Keys of a block in the order in which they are read: a quarter of the block each in turn. Pages of one row lie anywhere,
// and one stream at a time does not fill the memory's queues: reading scattered 8 KiB pieces gives a thread 10 GB/s one
// after the other, 20 GB/s four side by side, and 31 GB/s four of 64 KiB (Zen 4), which is why heads are the inner loop.
INLINE void find_quarters(const Attend& a, const int32_t* table, int64_t head, int64_t first, int64_t n, const uint16_t** at) {
  const uint16_t* plain[kBlock];
  find_keys<uint16_t>(a, table, head, first, n, plain);
  for (int64_t j = 0; j < n; j++) at[j] = plain[n == kBlock ? j % 4 * (kBlock / 4) + j / 4 : j];
  for (int64_t j = n; j < kBlock; j++) at[j] = at[0];  // scored with the others, and then overwritten
}

template <int G> INLINE void score_block(const uint16_t* const* at, int64_t n, const uint16_t* q, int64_t dim, float scale,
                                         const uint16_t* const* after, int64_t next, int64_t plane, float* scores) {
  for (int64_t j = 0; j < n || j < next; j += kScored) {
    if (j < next) prefetch<uint16_t>(after + j, least(kScored, next - j), plane, dim);
    if (j >= n) continue;
    // Sizes known to the compiler keep the queries in registers.
    if (dim == 64) score_pairs<G>(at + j, q, 64, scale, scores + j);
    else if (dim == 128) score_pairs<G>(at + j, q, 128, scale, scores + j);
    else score_pairs<G>(at + j, q, dim, scale, scores + j);
  }
}

INLINE void save_head(const float* out, float total, int64_t dim, uint16_t* result) {
  for (int64_t d = 0; d < dim; d += kPair) {
    const Words even = narrow_words(load(out + d) / total), odd = narrow_words(load(out + d + LANES) / total);
    const Words both = (even & 0xffffu) | (odd << 16);
    memcpy(result + d, &both, sizeof both);
  }
}

// One block of keys for G query heads; top, total and out hold what earlier blocks came to.
template <int G>
INLINE void attend_block(const uint16_t** at, int64_t n, const uint16_t* q, const Attend& a, const uint16_t* const* after,
                         int64_t next, float* top, float* total, float* out) {
  const int64_t dim = a.pages.dim, plane = a.pages.page_size * dim;
  float factor[G], scores[G * kBlock];
  score_block<G>(at, n, q, dim, a.scale, after, next, plane, scores);
  for (int g = 0; g < G; g++) factor[g] = soften(scores + g * kBlock, n, top + g, total + g);
  const uint16_t* moved[kBlock];
  memcpy(moved, at, sizeof moved);
  mix_all<G>(moved, plane, n, scores, factor, dim, out);
}

// KV heads from..to-1 of a row. scratch: top, total and out of all their query heads.
void decode_pairs(const Attend& a, int64_t row, int64_t from, int64_t to, float* scratch) {
  const int64_t dim = a.pages.dim, heads = (to - from) * a.group, next_head = 2 * a.pages.page_size * dim;
  float* top = scratch;
  float* total = top + heads;
  float* out = total + heads;
  for (int64_t h = 0; h < heads; h++) top[h] = -__builtin_inff(), total[h] = 0;
  memset(out, 0, static_cast<size_t>(heads * dim) * 4);
  const int32_t* table = a.table + row * a.table_stride;
  const int64_t keys = a.keys[row], start = a.window && keys > a.window ? keys - a.window : 0;
  const uint16_t* q = static_cast<const uint16_t*>(a.q) + a.first[row] * a.q_stride + from * a.group * dim;
  const uint16_t *at[kBlock], *after[kBlock];
  find_quarters(a, table, from, start, least(kBlock, keys - start), at);
  for (int64_t first = start, n; first < keys; first += n) {
    n = least(kBlock, keys - first);
    for (int64_t head = from; head < to; head++) {
      const bool last = head + 1 == to;
      const int64_t next = last ? least(kBlock, keys - first - n) : n;  // read ahead meanwhile
      if (last && next > 0) find_quarters(a, table, from, first + n, next, after);
      if (!last)
        for (int64_t j = 0; j < kBlock; j++) after[j] = at[j] + next_head;
      for (int64_t part = 0, h = (head - from) * a.group; part < a.group; part += 4, h += 4) {
        const int64_t ahead = part ? 0 : next;
        switch (a.group - part) {
          case 1: attend_block<1>(at, n, q + h * dim, a, after, ahead, top + h, total + h, out + h * dim); break;
          case 2: attend_block<2>(at, n, q + h * dim, a, after, ahead, top + h, total + h, out + h * dim); break;
          case 3: attend_block<3>(at, n, q + h * dim, a, after, ahead, top + h, total + h, out + h * dim); break;
          default: attend_block<4>(at, n, q + h * dim, a, after, ahead, top + h, total + h, out + h * dim);
        }
      }
      memcpy(at, after, sizeof at);
    }
  }
  const int64_t place = (a.first[row] * a.pages.kv_heads + from) * a.group * dim;
  for (int64_t h = 0; h < heads; h++) save_head(out + h * dim, total[h], dim, static_cast<uint16_t*>(a.out) + place + h * dim);
}

bool has_pairs(const Attend& a) {
  return a.type == Type::kBfloat16 && a.pages.type == Type::kBfloat16 && a.pages.dim % kPair == 0;
}

size_t decode_scratch512(const Attend& a) {
  if (!has_pairs(a)) return decode_scratch(a);
  return static_cast<size_t>(a.pages.kv_heads * a.group * (a.pages.dim + 2)) * sizeof(float);
}

void decode512(const Attend& a, int64_t row, int64_t from, int64_t to, void* scratch) {
  if (has_pairs(a)) decode_pairs(a, row, from, to, static_cast<float*>(scratch));
  else decode(a, row, from, to, scratch);
}

}  // namespace
