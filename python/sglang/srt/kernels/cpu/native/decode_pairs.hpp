// Attention of one query a row over bfloat16 pages, two values a word: an even and an odd dimension are a shift and a mask
// away from float32. What a level multiplies queries by is its `Dot`; V is widened, and so are the weights it is mixed
// with. Dimensions are a multiple of kPair.
#pragma once

#include "decode.hpp"

namespace {

constexpr int64_t kPair = 2 * LANES;  // bfloat16 values of a vector
constexpr int64_t kLine = 32;         // and of a cache line

// One key's or value's dimensions are asked for. Each key that is multiplied asks for the one at its place in the next
// block: sixteen asked for at once waited for each other, so that memory and arithmetic took turns (Zen 4, a pool of 800 MB:
// 15.6 GB/s a thread, now 20.8; the memory gives 27.6).
INLINE void read_ahead(const uint16_t* p, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kLine) __builtin_prefetch(p + d, 0, 2);
}

// Whether the hardware reads ahead better by itself. Requests of ours take places in the queue of the first-level cache; its
// own do not, but they keep up only with long pieces and little arithmetic a key. Speed without and with ours, the former
// way 1.00 (Zen 4): groups of two query heads and 64 KiB of a page 1.50 and 1.35, 32 KiB 1.37 and 1.35, 16 KiB 1.16 and
// 1.27; 64 KiB and groups of one 1.38 and 1.32, of three 1.20 and 1.32, of four 1.14 and 1.41. Zen 3: not measured.
INLINE bool streams(const Attend& a, int64_t heads) {
  return LANES == 16 && a.group <= 2 && heads * 2 * a.pages.page_size * a.pages.dim * 2 >= 65536;
}

// Adds the sum over n keys of p[j] times its value, from `offset` on, to V vectors of kPair dimensions of out [G][dim],
// after a rescale by factor[g]. Of kPair dimensions out holds the even ones and then the odd ones.
template <int G, int V>
INLINE void mix_pairs(const uint16_t* const* at, int64_t n, const float* p, const float* factor, int64_t dim,
                      int64_t offset, const uint16_t* const* after, int64_t plane, float* out) {
  Floats acc[G][V][2];
  for (int g = 0; g < G; g++)
    for (int v = 0; v < 2 * V; v++) acc[g][v / 2][v % 2] = load(out + g * dim + v * LANES) * factor[g];
  for (int64_t j = 0; j < n; j++) {
    if (after) read_ahead(after[j] + plane, dim);
    for (int v = 0; v < V; v++) {
      Words both;
      memcpy(&both, at[j] + offset + v * kPair, sizeof both);
      const Floats even = as_floats(both << 16), odd = as_floats(both & 0xffff0000u);
      for (int g = 0; g < G; g++) {
        acc[g][v][0] += even * p[g * kBlock + j];
        acc[g][v][1] += odd * p[g * kBlock + j];
        HOLD(acc[g][v][0]);
        HOLD(acc[g][v][1]);
      }
    }
  }
  for (int g = 0; g < G; g++)
    for (int v = 0; v < 2 * V; v++) save(out + g * dim + v * LANES, acc[g][v / 2][v % 2]);
}

template <int G>
INLINE void mix_all(const uint16_t* const* at, int64_t plane, int64_t n, const float* p, const float* factor, int64_t dim,
                    const uint16_t* const* after, float* out) {
  constexpr int kWide = LANES == 16 ? (G <= 2 ? 4 : 2) : G == 1 ? 4 : G <= 3 ? 2 : 1;  // what registers hold of sums
  int64_t d = 0;
  for (; d + kWide * kPair <= dim; d += kWide * kPair)
    mix_pairs<G, kWide>(at, n, p, factor, dim, plane + d, d ? nullptr : after, plane, out + d);
  for (; d < dim; d += kPair) mix_pairs<G, 1>(at, n, p, factor, dim, plane + d, d ? nullptr : after, plane, out + d);
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

INLINE void save_head(const float* out, float total, int64_t dim, uint16_t* result) {
  for (int64_t d = 0; d < dim; d += kPair) {
    const Words even = narrow_words(load(out + d) / total), odd = narrow_words(load(out + d + LANES) / total);
    const Words both = (even & 0xffffu) | (odd << 16);
    memcpy(result + d, &both, sizeof both);
  }
}

// One block of keys for G query heads; top, total and out hold what earlier blocks came to. after: the next block, or null.
template <int G, typename Dot>
INLINE void attend_block(const uint16_t* const* at, int64_t n, const typename Dot::Query* q, const Attend& a,
                         const uint16_t* const* after, float* top, float* total, float* out) {
  const int64_t dim = a.pages.dim, plane = a.pages.page_size * dim;
  float factor[G], scores[G * kBlock];
  for (int64_t j = 0; j < n; j += kScored) {
    const uint16_t* const* ahead = after ? after + j : nullptr;
    // Sizes known to the compiler keep the queries in registers.
    if (dim == 64) Dot::template score<G>(at + j, q, 64, a.scale, ahead, scores + j);
    else if (dim == 128) Dot::template score<G>(at + j, q, 128, a.scale, ahead, scores + j);
    else Dot::template score<G>(at + j, q, dim, a.scale, ahead, scores + j);
  }
  for (int g = 0; g < G; g++) factor[g] = soften(scores + g * kBlock, n, top + g, total + g);
  mix_all<G>(at, plane, n, scores, factor, dim, after, out);
}

// KV heads from..to-1 of a row. scratch: top, total and out of all their query heads, and what Dot needs of them.
template <typename Dot> void decode_pairs(const Attend& a, int64_t row, int64_t from, int64_t to, float* scratch) {
  const int64_t dim = a.pages.dim, heads = (to - from) * a.group, next_head = 2 * a.pages.page_size * dim;
  float* top = scratch;
  float* total = top + heads;
  float* out = total + heads;
  for (int64_t h = 0; h < heads; h++) top[h] = -__builtin_inff(), total[h] = 0;
  memset(out, 0, static_cast<size_t>(heads * dim) * 4);
  const int32_t* table = a.table + row * a.table_stride;
  const bool unasked = streams(a, to - from);
  const int64_t keys = a.keys[row], start = a.window && keys > a.window ? keys - a.window : 0;
  const uint16_t* asked = static_cast<const uint16_t*>(a.q) + a.first[row] * a.q_stride + from * a.group * dim;
  const typename Dot::Query* q = Dot::queries(asked, heads * dim, out + heads * dim);
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
        const uint16_t* const* ahead = part || next <= 0 || unasked ? nullptr : after;
        switch (a.group - part) {
          case 1: attend_block<1, Dot>(at, n, q + h * dim, a, ahead, top + h, total + h, out + h * dim); break;
          case 2: attend_block<2, Dot>(at, n, q + h * dim, a, ahead, top + h, total + h, out + h * dim); break;
          case 3: attend_block<3, Dot>(at, n, q + h * dim, a, ahead, top + h, total + h, out + h * dim); break;
          default: attend_block<4, Dot>(at, n, q + h * dim, a, ahead, top + h, total + h, out + h * dim);
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

template <typename Dot> size_t pairs_scratch(const Attend& a) {
  const int64_t heads = a.pages.kv_heads * a.group;
  return static_cast<size_t>(heads * (a.pages.dim + 2 + Dot::space(a.pages.dim))) * sizeof(float);
}

}  // namespace
