// Attention of one query a row over its pages, which are read where they lie. One item is a (row, KV head): the query
// heads of the group share each K and V that is read. Softmax is computed on the way, in float32.
#pragma once

#include "vector.hpp"

namespace {

using namespace cpu_kernels;

constexpr int64_t kBlock = 16;  // keys scored at a time; a multiple of LANES
// The hardware prefetcher stops at the end of 4 KiB, which is a page's K and V of one head at 16 tokens of 64
// dimensions: without a prefetch of our own each page begins with a miss.
constexpr int64_t kAhead = 4 * kBlock;

// Sums of the lanes of LANES vectors, as one vector. Each step halves the vectors that remain.
#if LANES == 16
INLINE Floats fold8(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
         __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
INLINE Floats fold4(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
INLINE Floats fold2(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
         __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
}
INLINE Floats fold1(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
INLINE Floats sums(const Floats* v) {
  // The folds leave lanes in the order of reversed bits, so that is the order in which vectors enter.
  constexpr int kReversed[8] = {0, 8, 4, 12, 2, 10, 6, 14};
  Floats a[8], b[4];
  for (int i = 0; i < 8; i++) a[i] = fold8(v[kReversed[i]], v[kReversed[i] + 1]);
  for (int i = 0; i < 4; i++) b[i] = fold4(a[i], a[i + 4]);
  return fold1(fold2(b[0], b[2]), fold2(b[1], b[3]));
}
#else
INLINE Floats sums(const Floats* v) {
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = sum(v[i]);
  return load(lanes);
}
#endif

template <typename KV> struct Keys {
  const KV* at[kBlock];
};

template <typename KV> INLINE const KV* key_of(const Decode& a, const int32_t* table, int64_t head, int64_t token) {
  const int64_t size = a.pages.page_size;
  const int64_t page = table[token / size];
  return static_cast<const KV*>(a.pages.data) + ((page * a.pages.kv_heads + head) * 2 * size + token % size) * a.pages.dim;
}

template <typename KV> INLINE void find_keys(const Decode& a, const int32_t* table, int64_t head, int64_t first, int64_t n,
                                             const KV** at) {
  const int64_t size = a.pages.page_size;
  int64_t inside = first % size;
  const KV* p = key_of<KV>(a, table, head, first);
  for (int64_t i = 0; i < n; i++) {
    at[i] = p;
    p += a.pages.dim;
    if (++inside == size && i + 1 < n) {
      inside = 0;
      p = key_of<KV>(a, table, head, first + i + 1);
    }
  }
}

template <typename KV> INLINE void prefetch(const Decode& a, const int32_t* table, int64_t head, int64_t first, int64_t n) {
  const KV* at[kBlock];
  find_keys<KV>(a, table, head, first, n, at);
  const int64_t plane = a.pages.page_size * a.pages.dim;
  for (int64_t i = 0; i < n; i++)
    for (int64_t byte = 0; byte < a.pages.dim * static_cast<int64_t>(sizeof(KV)); byte += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(at[i]) + byte, 0, 2);
      __builtin_prefetch(reinterpret_cast<const char*>(at[i] + plane) + byte, 0, 2);
    }
}

// Adds q . k of G query heads for n keys to scores [G][kBlock]. q: [G][padded].
template <int G, typename KV>
INLINE void score(const KV* const* at, int64_t n, const float* q, int64_t dim, int64_t padded, float* scores) {
  Floats part[G][kBlock];
  for (int64_t j = 0; j < n; j++) {
    Floats acc[G] = {};
    each<KV>(dim, [&](int64_t d, auto get, auto) INLINE_LAMBDA {
      const Floats k = get(at[j] + d);
      for (int g = 0; g < G; g++) acc[g] += k * load(q + g * padded + d);
    });
    for (int g = 0; g < G; g++) part[g][j] = acc[g];
  }
  for (int g = 0; g < G; g++) {
    for (int64_t j = n; j < kBlock; j++) part[g][j] = Floats{};
    for (int64_t j = 0; j < kBlock; j += LANES) save(scores + g * kBlock + j, sums(part[g] + j));
  }
}

// Adds the sum of p[j] * V[j] to out [G][padded], after a rescale by factor[g].
template <int G, typename KV>
INLINE void mix(const KV* const* at, int64_t plane, int64_t n, const float* p, const float* factor, int64_t dim,
                int64_t padded, float* out) {
  each<KV>(dim, [&](int64_t d, auto get, auto) INLINE_LAMBDA {
    Floats acc[G];
    for (int g = 0; g < G; g++) acc[g] = load(out + g * padded + d) * factor[g];
    for (int64_t j = 0; j < n; j++) {
      const Floats v = get(at[j] + plane + d);
      for (int g = 0; g < G; g++) acc[g] += v * p[g * kBlock + j];
    }
    for (int g = 0; g < G; g++) save(out + g * padded + d, acc[g]);
  });
}

// The online softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867) of one query head's block.
INLINE float soften(float* scores, int64_t n, float* top, float* total) {
  const float low = -__builtin_inff();
  for (int64_t j = n; j < kBlock; j++) scores[j] = low;
  float best = *top;
  for (int64_t j = 0; j < kBlock; j++) best = scores[j] > best ? scores[j] : best;
  const float factor = *top == best ? 1.0f : exponential(broadcast(*top - best))[0];
  Floats added{};
  for (int64_t j = 0; j < kBlock; j += LANES) {
    const Floats p = exponential(load(scores + j) - best);
    save(scores + j, p);
    added += p;
  }
  *total = *total * factor + sum(added);
  *top = best;
  return factor;
}

// G query heads from `head_in_group` on. scratch: q and out, [G][padded] each.
template <int G, typename T, typename KV>
void decode_heads(const Decode& a, int64_t row, int64_t kv_head, int64_t head_in_group, float* scratch) {
  const int64_t dim = a.pages.dim, padded = round_up(dim, LANES), keys = a.keys[row];
  const int64_t plane = a.pages.page_size * dim;
  const int32_t* table = a.table + row * a.table_stride;
  const int64_t head = kv_head * a.group + head_in_group;
  const T* q = static_cast<const T*>(a.q) + row * a.q_stride + head * dim;
  float* queries = scratch;
  float* out = scratch + G * padded;
  memset(scratch, 0, static_cast<size_t>(2 * G * padded) * 4);
  for (int g = 0; g < G; g++)
    each<T>(dim, [&](int64_t d, auto get, auto) INLINE_LAMBDA { save(queries + g * padded + d, get(q + g * dim + d) * a.scale); });
  float top[G], total[G] = {}, factor[G], scores[G * kBlock];
  for (int g = 0; g < G; g++) top[g] = -__builtin_inff();
  const KV* at[kBlock];
  const int64_t start = a.window && keys > a.window ? keys - a.window : 0;
  for (int64_t first = start; first < keys; first += kBlock) {
    const int64_t n = least(kBlock, keys - first);
    if (first + kAhead < keys) prefetch<KV>(a, table, kv_head, first + kAhead, least(kBlock, keys - first - kAhead));
    find_keys<KV>(a, table, kv_head, first, n, at);
    if (n == kBlock)
      score<G, KV>(at, kBlock, queries, dim, padded, scores);
    else
      score<G, KV>(at, n, queries, dim, padded, scores);
    for (int g = 0; g < G; g++) factor[g] = soften(scores + g * kBlock, n, top + g, total + g);
    mix<G, KV>(at, plane, n, scores, factor, dim, padded, out);
  }
  T* result = static_cast<T*>(a.out) + (row * a.pages.kv_heads * a.group + head) * dim;
  for (int g = 0; g < G; g++)
    each<T>(dim, [&](int64_t d, auto, auto put) INLINE_LAMBDA { put(result + g * dim + d, load(out + g * padded + d) / total[g]); });
}

template <typename T, typename KV> void decode_item(const Decode& a, int64_t item, float* scratch) {
  const int64_t row = item / a.pages.kv_heads, kv_head = item % a.pages.kv_heads;
  int64_t done = 0;
  while (done < a.group) {
    const int64_t left = a.group - done;
    if (left >= 4) decode_heads<4, T, KV>(a, row, kv_head, done, scratch), done += 4;
    else if (left == 3) decode_heads<3, T, KV>(a, row, kv_head, done, scratch), done += 3;
    else if (left == 2) decode_heads<2, T, KV>(a, row, kv_head, done, scratch), done += 2;
    else decode_heads<1, T, KV>(a, row, kv_head, done, scratch), done += 1;
  }
}

size_t decode_scratch(const Decode& a) { return static_cast<size_t>(round_up(a.pages.dim, LANES)) * 2 * 4 * sizeof(float); }

void decode(const Decode& a, int64_t item, void* scratch) {
  float* space = static_cast<float*>(scratch);
  const bool wide = a.pages.type == Type::kFloat32;
  if (a.type == Type::kFloat32)
    wide ? decode_item<float, float>(a, item, space) : decode_item<float, uint16_t>(a, item, space);
  else
    wide ? decode_item<uint16_t, float>(a, item, space) : decode_item<uint16_t, uint16_t>(a, item, space);
}

}  // namespace
