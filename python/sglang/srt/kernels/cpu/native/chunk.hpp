// Attention of a prompt's chunk over bfloat16 pages, with the online softmax of decode.hpp. A tile is up to 64 queries of
// the heads that share a KV head, one a lane, so that the softmax works on whole vectors: the scores are computed
// transposed, K times packed Q, and the output too, V times packed weights. How rows and columns are multiplied is a
// level's `Products`.
#pragma once

#include "decode_pairs.hpp"
#include "transpose.hpp"

namespace {

constexpr int64_t kLanes = kTileQueries;
constexpr int kVectors = kLanes / LANES;
constexpr int64_t kTileKeys = 96;  // keys of one softmax, a multiple of kTileRows
constexpr int kTileRows = 6;       // rows of a product whose sums fill the registers
constexpr float kHidden = -1e30f;  // finite: infinity less infinity would be NaN

// Which lanes see key `key`: those at positions from it on, up to its window's end.
INLINE Floats shown(Floats score, Ints position, int32_t key, int32_t window) {
  const Ints distance = position - key;
  const Floats hidden = broadcast(kHidden);
  const Floats causal = distance < 0 ? hidden : score;
  return window ? (distance >= window ? hidden : causal) : causal;
}

struct Lanes {  // of vectors of queries
  Floats top[kVectors], total[kVectors], factor[kVectors];
  Ints position[kVectors];
};

// `rows` rows, kTileRows at a time: body(first, an integral constant of how many).
template <typename F> INLINE void each_rows(int64_t rows, F&& body) {
  for (int64_t r = 0; r < rows; r += kTileRows) switch (rows - r) {
      case 1: body(r, std::integral_constant<int, 1>()); break;
      case 2: body(r, std::integral_constant<int, 2>()); break;
      case 3: body(r, std::integral_constant<int, 3>()); break;
      case 4: body(r, std::integral_constant<int, 4>()); break;
      case 5: body(r, std::integral_constant<int, 5>()); break;
      default: body(r, std::integral_constant<int, kTileRows>());
    }
}

// Scores of n keys from `first` on to weights. `masked`: some lane sees only some of them.
template <int N, typename Products>
INLINE void soften_lanes(const Products& products, Lanes& lanes, int64_t first, int64_t n, bool masked, int32_t window,
                         float scale) {
  for (int v = 0; v < N; v++) {
    float* column = products.scores + v * LANES;
    Floats highest = lanes.top[v];
    for (int64_t key = 0; key < n; key++) {
      Floats score = load(column + key * kLanes);
      if (masked) {
        score = shown(score, lanes.position[v], static_cast<int32_t>(first + key), window);
        save(column + key * kLanes, score);
      }
      highest = larger(highest, score);
    }
    lanes.factor[v] = Products::power((lanes.top[v] - highest) * scale);
    lanes.top[v] = highest;
    lanes.total[v] = lanes.total[v] * lanes.factor[v] + products.weigh(v, n, scale, highest * scale);
  }
}

template <int N, typename Products> void chunk_tile(const Attend& a, const Tile& tile, void* memory) {
  const int64_t dim = a.pages.dim, plane = a.pages.page_size * dim, lanes_used = tile.queries * tile.heads;
  const Products products(memory, dim);
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
  products.template pack_queries<N>(query_of);
  for (int v = 0; v < N; v++) {
    lanes.top[v] = broadcast(kHidden);
    lanes.total[v] = Floats{};
    memcpy(&lanes.position[v], positions + v * LANES, sizeof(Ints));
  }
  const int64_t end = start + tile.queries;
  const int64_t begin = a.window && start + 1 > a.window ? start + 1 - a.window : 0;
  const uint16_t* at[kTileKeys];
  const float scale = a.scale * Products::kBase;
  for (int64_t first = begin; first < end; first += kTileKeys) {
    const int64_t n = least(kTileKeys, end - first);
    find_keys<uint16_t>(a, a.table + tile.row * a.table_stride, tile.kv_head, first, n, at);
    products.template score<N>(at, n);
    const bool masked = first + n > start + 1 || (a.window && first < end - a.window);
    soften_lanes<N>(products, lanes, first, n, masked, static_cast<int32_t>(a.window), scale);
    products.template mix<N>(at, plane, n, first == begin ? nullptr : lanes.factor);
  }
  uint16_t* out = static_cast<uint16_t*>(a.out);
  for (int v = 0; v < N; v++)
    for (int64_t d = 0; d < dim; d += LANES) {
      Words block[LANES];
      for (int i = 0; i < LANES; i++)
        block[i] = as_words(load(products.out + (d + i) * kLanes + v * LANES) / lanes.total[v]);
      transpose(block);
      for (int64_t i = 0, lane = v * LANES; i < LANES && lane < lanes_used; i++, lane++) {
        const int64_t row = (token + lane / tile.heads) * a.pages.kv_heads * a.group + head + lane % tile.heads;
        save(out + row * dim + d, as_floats(block[i]));
      }
    }
}

template <typename Products> void chunk_by(const Attend& a, const Tile& tile, void* scratch) {
  if (tile.queries * tile.heads > kLanes / 2) chunk_tile<kVectors, Products>(a, tile, scratch);
  else if (tile.queries * tile.heads > kLanes / 4) chunk_tile<kVectors / 2, Products>(a, tile, scratch);
  else chunk_tile<kVectors / 4, Products>(a, tile, scratch);
}

}  // namespace
