// Attention of one query a row over its pages, which are read where they lie. One item is a (row, KV head): the query
// heads of the group share each K and V that is read. Softmax is computed on the way, in float32.
#pragma once

#include "vector.hpp"

namespace {

using namespace cpu_kernels;

constexpr int64_t kBlock = 64;  // keys of one softmax
constexpr int64_t kScored = 16;  // keys scored at a time, a multiple of LANES: their sums are folded together

// A lane whose number has bit STEP is b's, the others are a's; each is added to the one STEP away. The first shuffle is a
// blend, which has more units than the other kind.
template <int STEP, size_t... LANE> INLINE Floats fold(Floats a, Floats b, std::index_sequence<LANE...>) {
  return __builtin_shufflevector(a, b, (LANE & STEP ? LANES + LANE : LANE)...) +
         __builtin_shufflevector(a, b, (LANE & STEP ? LANES + LANE - STEP : LANE + STEP)...);
}

// Sums of the lanes of LANES vectors, as one vector. Each step halves the vectors that remain; v is overwritten.
template <int STEP = LANES / 2> INLINE Floats sums(Floats* v) {
  for (int i = 0; i < STEP; i++) v[i] = fold<STEP>(v[i], v[i + STEP], std::make_index_sequence<LANES>());
  if constexpr (STEP == 1) return v[0];
  else return sums<STEP / 2>(v);
}

template <typename KV> INLINE const KV* key_of(const Attend& a, const int32_t* table, int64_t head, int64_t token) {
  const int64_t size = a.pages.page_size;
  const int64_t page = table[token / size];
  return static_cast<const KV*>(a.pages.data) + ((page * a.pages.kv_heads + head) * 2 * size + token % size) * a.pages.dim;
}

template <typename KV> INLINE void find_keys(const Attend& a, const int32_t* table, int64_t head, int64_t first, int64_t n,
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

// The hardware prefetcher stops at the end of 4 KiB, which is a page's K and V of one head at 16 tokens of 64 dimensions:
// without a prefetch of our own each page begins with a miss.
template <typename KV> INLINE void prefetch(const KV* const* at, int64_t n, int64_t plane, int64_t dim) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t byte = 0; byte < dim * static_cast<int64_t>(sizeof(KV)); byte += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(at[i]) + byte, 0, 2);
      __builtin_prefetch(reinterpret_cast<const char*>(at[i] + plane) + byte, 0, 2);
    }
}

// q . k of G query heads for n <= kScored keys, to scores [G][kBlock]. q: [G][padded].
template <int G, typename KV>
INLINE void score(const KV* const* at, int64_t n, const float* q, int64_t dim, int64_t padded, float* scores) {
  Floats part[G][kScored];
  for (int64_t j = 0; j < n; j++) {
    Floats acc[G] = {};
    each(dim, [&](int64_t d, auto get, auto) INLINE_LAMBDA {
      const Floats k = get(at[j] + d);
      for (int g = 0; g < G; g++) acc[g] += k * load(q + g * padded + d);
    });
    for (int g = 0; g < G; g++) part[g][j] = acc[g];
  }
  for (int g = 0; g < G; g++) {
    for (int64_t j = n; j < kScored; j++) part[g][j] = Floats{};
    for (int64_t j = 0; j < kScored; j += LANES) save(scores + g * kBlock + j, sums(part[g] + j));
  }
}

// Adds the sum over n keys of p[j] * value[j] to V vectors of out [G][padded]; `at` points at those vectors.
template <int G, int V, typename KV>
INLINE void mix_vectors(const KV* const* at, int64_t n, const float* p, const float* factor, int64_t padded, float* out) {
  Floats acc[G][V];
  for (int g = 0; g < G; g++)
    for (int v = 0; v < V; v++) acc[g][v] = load(out + g * padded + v * LANES) * factor[g];
  for (int64_t j = 0; j < n; j++)
    for (int v = 0; v < V; v++) {
      const Floats value = load(at[j] + v * LANES);
      for (int g = 0; g < G; g++) acc[g][v] += value * p[g * kBlock + j];
    }
  for (int g = 0; g < G; g++)
    for (int v = 0; v < V; v++) save(out + g * padded + v * LANES, acc[g][v]);
}

// The same for all dimensions, after a rescale of out by factor[g].
template <int G, typename KV>
INLINE void mix(const KV** at, int64_t plane, int64_t n, const float* p, const float* factor, int64_t dim, int64_t padded,
                float* out) {
  for (int64_t j = 0; j < n; j++) at[j] += plane;
  int64_t d = 0;
  for (; d + 4 * LANES <= dim; d += 4 * LANES) {
    mix_vectors<G, 4, KV>(at, n, p, factor, padded, out + d);
    for (int64_t j = 0; j < n; j++) at[j] += 4 * LANES;
  }
  each(dim - d, [&](int64_t rest, auto get, auto) INLINE_LAMBDA {
    Floats acc[G];
    for (int g = 0; g < G; g++) acc[g] = load(out + g * padded + d + rest) * factor[g];
    for (int64_t j = 0; j < n; j++) {
      const Floats value = get(at[j] + rest);
      for (int g = 0; g < G; g++) acc[g] += value * p[g * kBlock + j];
    }
    for (int g = 0; g < G; g++) save(out + g * padded + d + rest, acc[g]);
  });
}

// The online softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867) of one query head's block.
INLINE float soften(float* scores, int64_t n, float* top, float* total) {
  const int64_t whole = round_up(n, LANES);
  for (int64_t j = n; j < whole; j++) scores[j] = -__builtin_inff();
  Floats best = load(scores);
  for (int64_t j = LANES; j < whole; j += LANES) best = larger(best, load(scores + j));
  const float highest = largest(best) > *top ? largest(best) : *top;
  const float factor = *top == highest ? 1.0f : exponential(broadcast(*top - highest))[0];
  Floats added{};
  for (int64_t j = 0; j < whole; j += LANES) {
    const Floats p = exponential(load(scores + j) - highest);
    save(scores + j, p);
    added += p;
  }
  *total = *total * factor + sum(added);
  *top = highest;
  return factor;
}

// G query heads from `head_in_group` on. scratch: q and out, [G][padded] each.
template <int G, typename T, typename KV>
void decode_heads(const Attend& a, int64_t row, int64_t kv_head, int64_t head_in_group, float* scratch) {
  const int64_t dim = a.pages.dim, padded = round_up(dim, LANES), keys = a.keys[row];
  const int64_t plane = a.pages.page_size * dim;
  const int32_t* table = a.table + row * a.table_stride;
  const int64_t head = kv_head * a.group + head_in_group;
  const T* q = static_cast<const T*>(a.q) + a.first[row] * a.q_stride + head * dim;
  float* queries = scratch;
  float* out = scratch + G * padded;
  memset(scratch, 0, static_cast<size_t>(2 * G * padded) * 4);
  for (int g = 0; g < G; g++)
    each(dim, [&](int64_t d, auto get, auto) INLINE_LAMBDA { save(queries + g * padded + d, get(q + g * dim + d) * a.scale); });
  float top[G], total[G] = {}, factor[G], scores[G * kBlock];
  for (int g = 0; g < G; g++) top[g] = -__builtin_inff();
  const KV* memory[2][kBlock];
  const KV** at = memory[0];
  const KV** after = memory[1];
  const int64_t start = a.window && keys > a.window ? keys - a.window : 0;
  int64_t n = least(kBlock, keys - start);
  find_keys<KV>(a, table, kv_head, start, n, at);
  for (int64_t first = start; first < keys; first += kBlock) {
    const int64_t next = least(kBlock, keys - first - n);
    if (next > 0) find_keys<KV>(a, table, kv_head, first + n, next, after);
    for (int64_t j = 0; j < n; j += kScored) {
      if (j < next) prefetch<KV>(after + j, least(kScored, next - j), plane, dim);
      const int64_t scored = least(kScored, n - j);
      // Sizes known to the compiler keep the queries in registers.
      if (scored == kScored && dim == 64) score<G, KV>(at + j, kScored, queries, 64, 64, scores + j);
      else if (scored == kScored && dim == 128) score<G, KV>(at + j, kScored, queries, 128, 128, scores + j);
      else score<G, KV>(at + j, scored, queries, dim, padded, scores + j);
    }
    for (int g = 0; g < G; g++) factor[g] = soften(scores + g * kBlock, n, top + g, total + g);
    mix<G, KV>(at, plane, n, scores, factor, dim, padded, out);
    const KV** spare = at;
    at = after;
    after = spare;
    n = next;
  }
  T* result = static_cast<T*>(a.out) + (a.first[row] * a.pages.kv_heads * a.group + head) * dim;
  for (int g = 0; g < G; g++)
    each(dim, [&](int64_t d, auto, auto put) INLINE_LAMBDA { put(result + g * dim + d, load(out + g * padded + d) / total[g]); });
}

template <typename T, typename KV> void decode_item(const Attend& a, int64_t row, int64_t kv_head, float* scratch) {
  int64_t done = 0;
  while (done < a.group) {
    const int64_t left = a.group - done;
    if (left >= 4) decode_heads<4, T, KV>(a, row, kv_head, done, scratch), done += 4;
    else if (left == 3) decode_heads<3, T, KV>(a, row, kv_head, done, scratch), done += 3;
    else if (left == 2) decode_heads<2, T, KV>(a, row, kv_head, done, scratch), done += 2;
    else decode_heads<1, T, KV>(a, row, kv_head, done, scratch), done += 1;
  }
}

size_t decode_scratch(const Attend& a) { return static_cast<size_t>(round_up(a.pages.dim, LANES)) * 2 * 4 * sizeof(float); }

void decode(const Attend& a, int64_t row, int64_t from, int64_t to, void* scratch) {
  float* space = static_cast<float*>(scratch);
  const bool wide = a.pages.type == Type::kFloat32;
  for (int64_t head = from; head < to; head++) {
    if (a.type == Type::kFloat32)
      wide ? decode_item<float, float>(a, row, head, space) : decode_item<float, uint16_t>(a, row, head, space);
    else
      wide ? decode_item<uint16_t, float>(a, row, head, space) : decode_item<uint16_t, uint16_t>(a, row, head, space);
  }
}

}  // namespace
