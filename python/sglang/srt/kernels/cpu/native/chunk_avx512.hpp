// Attention of a prompt's chunk over bfloat16 pages by vdpbf16ps, with the online softmax of decode.hpp. A tile is up to
// 64 queries of the heads that share a KV head, one a lane, so that the softmax works on whole vectors: the scores are
// computed transposed, K times packed Q, and the output too, V times packed weights. K is read where it lies.
#pragma once

#include "decode_avx512.hpp"

namespace {

constexpr int64_t kLanes = kTileQueries;
constexpr int64_t kTileKeys = 96;  // keys of one softmax, a multiple of kTileRows
constexpr int kTileRows = 6;       // 6 rows x 4 vectors of sums fill the registers
constexpr float kHidden = -1e30f;  // finite: infinity less infinity would be NaN

struct ChunkScratch {
  uint32_t* q;    // [dim / 2][kLanes] pairs
  uint32_t* v;    // [kTileKeys / 2][dim] pairs of tokens
  uint32_t* p;    // [kTileKeys / 2][kLanes] pairs of keys
  float* scores;  // [kTileKeys][kLanes]
  float* out;     // [dim][kLanes]
  ChunkScratch(void* memory, int64_t dim) {
    q = static_cast<uint32_t*>(memory);
    v = q + dim / 2 * kLanes;
    p = v + kTileKeys / 2 * dim;
    scores = reinterpret_cast<float*>(p + kTileKeys / 2 * kLanes);
    out = scores + kTileKeys * kLanes;
  }
};

size_t chunk_scratch512(const Attend& a) {
  const int64_t dim = a.pages.dim;
  return static_cast<size_t>(dim / 2 * kLanes + kTileKeys / 2 * (dim + kLanes) + (kTileKeys + dim) * kLanes) * 4;
}

// 16 vectors of 32-bit lanes: lane j of vector i changes places with lane i of vector j.
template <int STEP> INLINE void exchange(Words* v) {
  for (int i = 0; i < LANES; i++) {
    if (i & STEP) continue;
    const Words a = v[i], b = v[i + STEP];
    if constexpr (STEP == 8) {
      v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
      v[i + STEP] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    } else if constexpr (STEP == 4) {
      v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
      v[i + STEP] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    } else if constexpr (STEP == 2) {
      v[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      v[i + STEP] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    } else {
      v[i] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
      v[i + STEP] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    }
  }
}
INLINE void transpose(Words* v) {
  exchange<8>(v);
  exchange<4>(v);
  exchange<2>(v);
  exchange<1>(v);
}

// R rows times packed columns, N vectors wide: out[r] = out[r] * factor + the products. `pair(r, k)` is a row's k-th
// pair. Without factor what out held is forgotten.
template <int R, int N, typename F>
INLINE void multiply_pairs(int64_t pairs, F&& pair, const uint32_t* packed, const Floats* factor, float* out) {
  __m512 acc[R][N];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < N; v++)
      acc[r][v] = factor ? reinterpret_cast<__m512>(load(out + r * kLanes + v * LANES) * factor[v]) : _mm512_setzero_ps();
  for (int64_t k = 0; k < pairs; k++) {
    __m512bh w[N];
    for (int v = 0; v < N; v++) w[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed + k * kLanes + v * LANES));
    for (int r = 0; r < R; r++) {
      int32_t two;
      memcpy(&two, pair(r, k), 4);
      const __m512bh both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
      for (int v = 0; v < N; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w[v], both);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < N; v++) _mm512_storeu_ps(out + r * kLanes + v * LANES, acc[r][v]);
}

template <int N, typename F>
INLINE void multiply_rows(int64_t rows, int64_t pairs, F&& pair, const uint32_t* packed, const Floats* factor, float* out) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const auto from = [&](int64_t i, int64_t k) INLINE_LAMBDA { return pair(r + i, k); };
    float* to = out + r * kLanes;
    switch (rows - r) {
      case 1: multiply_pairs<1, N>(pairs, from, packed, factor, to); break;
      case 2: multiply_pairs<2, N>(pairs, from, packed, factor, to); break;
      case 3: multiply_pairs<3, N>(pairs, from, packed, factor, to); break;
      case 4: multiply_pairs<4, N>(pairs, from, packed, factor, to); break;
      case 5: multiply_pairs<5, N>(pairs, from, packed, factor, to); break;
      default: multiply_pairs<kTileRows, N>(pairs, from, packed, factor, to);
    }
  }
}

// 2^x within 2^-12, enough for what is rounded to bfloat16; 0 far below. x <= 0.
INLINE Floats power_of_two(Floats x) {
  const __m512 n = _mm512_roundscale_ps(reinterpret_cast<__m512>(x), 0);
  const Floats f = x - reinterpret_cast<Floats>(n);  // -0.5 .. 0.5
  Floats y = f * 0.0096181291f + 0.0555041087f;  // Taylor's series of 2^f to the fourth power
  y = y * f + 0.2402265070f;
  y = y * f + 0.6931471806f;
  y = y * f + 1.0f;
  return reinterpret_cast<Floats>(_mm512_scalef_ps(reinterpret_cast<__m512>(y), n));
}

// To bfloat16, the even one of a pair in the low half.
INLINE Words beside(Floats even, Floats odd) {
  const __m512bh halves = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even));
  const Words order = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                       0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
  return reinterpret_cast<Words>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(order), reinterpret_cast<__m512i>(halves)));
}

// Which lanes see key `key`: those at positions from it on, up to its window's end.
INLINE Floats shown(Floats score, Ints position, int32_t key, int32_t window) {
  const Ints distance = position - key;
  const Floats hidden = broadcast(kHidden);
  const Floats causal = distance < 0 ? hidden : score;
  return window ? (distance >= window ? hidden : causal) : causal;
}

struct Lanes {  // of N vectors of queries
  Floats top[4], total[4], factor[4];
  Ints position[4];
};

// Scores of n keys from `first` on to weights in bfloat16, pairs of keys beside each other. `masked`: some lane sees only
// some of them.
template <int N>
INLINE void soften_lanes(const ChunkScratch& s, Lanes& lanes, int64_t first, int64_t n, bool masked, int32_t window,
                         float scale) {
  for (int v = 0; v < N; v++) {
    float* column = s.scores + v * LANES;
    Floats highest = lanes.top[v];
    for (int64_t key = 0; key < n; key++) {
      Floats score = load(column + key * kLanes);
      if (masked) {
        score = shown(score, lanes.position[v], static_cast<int32_t>(first + key), window);
        save(column + key * kLanes, score);
      }
      highest = larger(highest, score);
    }
    lanes.factor[v] = power_of_two((lanes.top[v] - highest) * scale);
    lanes.top[v] = highest;
    const Floats shift = highest * scale;
    Floats total = lanes.total[v] * lanes.factor[v];
    for (int64_t key = 0; key < n; key += 2) {
      const Floats even = power_of_two(load(column + key * kLanes) * scale - shift);
      const Floats odd = key + 1 < n ? power_of_two(load(column + (key + 1) * kLanes) * scale - shift) : Floats{};
      total += even + odd;
      const Words both = beside(even, odd);
      memcpy(s.p + key / 2 * kLanes + v * LANES, &both, sizeof both);
    }
    lanes.total[v] = total;
  }
}

// Values of two tokens beside each other; a missing last one is zero.
INLINE void pack_values(const uint16_t* const* at, int64_t plane, int64_t n, int64_t dim, uint32_t* packed) {
  for (int64_t key = 0; key < n; key += 2) {
    const uint16_t* even = at[key] + plane;
    const uint16_t* odd = key + 1 < n ? at[key + 1] + plane : nullptr;
    for (int64_t d = 0; d < dim; d += LANES) {
      Halves low, high{};
      memcpy(&low, even + d, sizeof low);
      if (odd) memcpy(&high, odd + d, sizeof high);
      const Words both = __builtin_convertvector(low, Words) | (__builtin_convertvector(high, Words) << 16);
      memcpy(packed + key / 2 * dim + d, &both, sizeof both);
    }
  }
}

template <int N> void chunk_tile(const Attend& a, const Tile& tile, void* memory) {
  const int64_t dim = a.pages.dim, plane = a.pages.page_size * dim, lanes_used = tile.queries * tile.heads;
  const ChunkScratch s(memory, dim);
  const int64_t token = a.first[tile.row] + tile.first_query;
  const int64_t start = a.keys[tile.row] - a.queries[tile.row] + tile.first_query;  // position of the first query
  const int64_t head = tile.kv_head * a.group + tile.first_head;
  const uint16_t* q = static_cast<const uint16_t*>(a.q);
  Lanes lanes;
  int32_t positions[kLanes];
  const uint16_t* query_of[kLanes];
  for (int64_t lane = 0; lane < N * LANES; lane++) {
    const int64_t used = least(lane, lanes_used - 1);  // lanes to spare repeat the last query
    const int64_t query = used / tile.heads;
    positions[lane] = static_cast<int32_t>(start + query);
    query_of[lane] = q + (token + query) * a.q_stride + (head + used % tile.heads) * dim;
  }
  for (int64_t lane = 0; lane < N * LANES; lane += LANES)
    for (int64_t d = 0; d < dim; d += kPair) {
      Words block[LANES];
      for (int i = 0; i < LANES; i++) memcpy(&block[i], query_of[lane + i] + d, sizeof(Words));
      transpose(block);
      for (int i = 0; i < LANES; i++) memcpy(s.q + (d / 2 + i) * kLanes + lane, &block[i], sizeof(Words));
    }
  for (int v = 0; v < N; v++) {
    lanes.top[v] = broadcast(kHidden);
    lanes.total[v] = Floats{};
    memcpy(&lanes.position[v], positions + v * LANES, sizeof(Ints));
  }
  const int64_t end = start + tile.queries;
  const int64_t begin = a.window && start + 1 > a.window ? start + 1 - a.window : 0;
  const uint16_t* at[kTileKeys];
  const float scale = a.scale * 1.44269504f;
  for (int64_t first = begin; first < end; first += kTileKeys) {
    const int64_t n = least(kTileKeys, end - first);
    find_keys<uint16_t>(a, a.table + tile.row * a.table_stride, tile.kv_head, first, n, at);
    const auto key = [&](int64_t r, int64_t k) INLINE_LAMBDA { return at[r] + 2 * k; };
    multiply_rows<N>(n, dim / 2, key, s.q, nullptr, s.scores);
    const bool masked = first + n > start + 1 || (a.window && first < end - a.window);
    soften_lanes<N>(s, lanes, first, n, masked, static_cast<int32_t>(a.window), scale);
    pack_values(at, plane, n, dim, s.v);
    const auto value = [&](int64_t r, int64_t k) INLINE_LAMBDA { return s.v + k * dim + r; };
    multiply_rows<N>(dim, (n + 1) / 2, value, s.p, first == begin ? nullptr : lanes.factor, s.out);
  }
  uint16_t* out = static_cast<uint16_t*>(a.out);
  for (int v = 0; v < N; v++)
    for (int64_t d = 0; d < dim; d += LANES) {
      Words block[LANES];
      for (int i = 0; i < LANES; i++) block[i] = as_words(load(s.out + (d + i) * kLanes + v * LANES) / lanes.total[v]);
      transpose(block);
      for (int64_t i = 0, lane = v * LANES; i < LANES && lane < lanes_used; i++, lane++) {
        const int64_t row = (token + lane / tile.heads) * a.pages.kv_heads * a.group + head + lane % tile.heads;
        save(out + row * dim + d, as_floats(block[i]));
      }
    }
}

void chunk512(const Attend& a, const Tile& tile, void* scratch) {
  if (tile.queries * tile.heads > 2 * LANES) chunk_tile<4>(a, tile, scratch);
  else if (tile.queries * tile.heads > LANES) chunk_tile<2>(a, tile, scratch);
  else chunk_tile<1>(a, tile, scratch);
}

}  // namespace
