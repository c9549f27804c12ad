// What the kernels are given, and the table of them that each level fills. No torch: addresses and strides.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cpu_kernels {

enum class Type : int { kFloat32 = 0, kBfloat16 = 1 };

// Linear layers read weights as strips of 64 outputs: [outputs / 64][inputs / 2][64][2] bfloat16, padded with zeros.
// That is one sequential stream, each pair of inputs is what vdpbf16ps multiplies, and 16 pairs of 16 outputs are a
// tile of AMX; so all levels share it.
constexpr int64_t kStrip = 64;
constexpr int64_t kDepth = 32;  // inputs are padded to a multiple of this

struct Linear {
  const uint16_t* x;  // [rows, inputs], rows x_stride apart; inputs a multiple of kDepth
  int64_t x_stride;
  const uint16_t* weight;
  const uint16_t* bias;  // [outputs] or null
  uint16_t* out;         // [rows, outputs], rows out_stride apart
  int64_t out_stride;
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
  const float* scales;  // [outputs, padded] or null: with it weights are int8 in the same order, in units of their scale
};

struct Norm {
  void* x;  // [rows, heads, size], rows and heads these many elements apart; written only where something is added
  int64_t x_stride;
  int64_t x_head_stride;
  const void* weight;
  void* out;  // as x; may be x
  int64_t out_stride;
  int64_t out_head_stride;
  int64_t rows;
  int64_t heads;
  int64_t size;
  float eps;
  Type type;
  const void* added = nullptr;  // as x with one head: x += added comes first
};

struct Gate {
  const void* x;  // [rows, 2 * width]: gate beside up
  int64_t x_stride;
  void* out;  // [rows, width], contiguous
  int64_t rows;
  int64_t width;
  Type type;
};

struct Rotate {
  void* x;  // [rows, heads, dim], in place
  int64_t x_stride;
  int64_t x_head_stride;
  const void* cosine;  // [rows, dim], contiguous, of x's type
  const void* sine;    // the first half negated
  int64_t rows;
  int64_t heads;
  int64_t dim;
  Type type;
};

// x += y, both [rows, width] and contiguous.
struct Add {
  void* x;
  const void* y;
  int64_t rows;
  int64_t width;
  Type type;
};

// Rows of a table by their numbers.
struct Lookup {
  const int64_t* numbers;  // [rows]
  const void* table;       // [entries, width], contiguous; or packed as a linear layer's weight is, bfloat16 alone
  bool packed;
  int64_t entries;
  int64_t width;
  void* out;  // [rows, width], contiguous
  int64_t rows;
  Type type;
};

// Cosine and signed sine of rotary embedding at some positions.
struct Turns {
  const int64_t* positions;  // [rows]
  const float* inverse;      // [pairs]: radians a position
  int64_t pairs;
  float magnitude;
  void* cosine;  // [rows, 2 * pairs], contiguous: both halves the same
  void* sine;    // the first half negated
  int64_t rows;
  Type type;
};

// Pages of one layer: [pages, kv_heads, 2, page_size, dim], contiguous.
struct Pages {
  void* data;
  Type type;
  int64_t kv_heads;
  int64_t page_size;
  int64_t dim;
};

// Where a token of the step goes.
struct Place {
  int64_t token;
  int64_t element;  // of the layer: the token's K of the first head
};

struct Store {
  Pages pages;
  const void* kv;  // [tokens, 2, kv_heads, dim], tokens kv_stride apart
  int64_t kv_stride;
  Type type;
  const Place* places;
};

struct Argmax {
  const void* x;  // [rows, size], rows x_stride apart
  int64_t x_stride;
  int64_t* out;  // [rows]
  int64_t rows;
  int64_t size;
  Type type;
};

// Tokens drawn from rows of logits; a row of temperature 0, or with an infinite logit, takes the first of the largest.
struct Draw {
  const void* x;  // [rows, size], rows x_stride apart
  int64_t x_stride;
  Type type;
  const float* temperature;  // [rows], as all that follow
  const int64_t* top_k;      // `size` keeps all
  const float* top_p;        // 1 keeps all
  const float* min_p;        // 0 keeps all
  const double* uniform;     // from 0 to below 1: what decides
  int64_t* out;
  int64_t rows;
  int64_t size;
};

// Which experts a row goes to: the top_k likeliest of a softmax over x times each expert's vector, likeliest first, the
// first of equals first.
struct Route {
  const void* x;  // [rows, inputs], rows x_stride apart
  int64_t x_stride;
  Type type;
  const float* weight;  // [experts, inputs], contiguous
  int64_t experts;
  int64_t inputs;
  int64_t top_k;
  bool normalize;  // probabilities of those chosen are divided by their sum
  float scale;     // and multiplied by this
  int64_t* chosen;  // [rows, top_k]
  float* shares;    // [rows, top_k]
  int64_t rows;
};
constexpr int64_t kExpertsAtOnce = 4;  // experts that are scored at once

// One expert's packed weights and, of int8, their scales; see Linear.
struct Expert {
  const uint16_t* gate_up;  // [2 * width, inputs], gate above up
  const float* gate_up_scales;
  const uint16_t* down;  // [inputs, width]
  const float* down_scales;
};

// For each row the sum of `share * down(silu(gate) * up)` over those of its experts that are held.
struct Experts {
  const uint16_t* x;  // [rows, inputs], rows x_stride apart
  int64_t x_stride;
  const int64_t* chosen;  // [rows, top_k]
  const float* shares;    // [rows, top_k]
  int64_t top_k;
  const Expert* held;
  int64_t first;  // the number of held[0]
  int64_t count;
  int64_t inputs;
  int64_t width;
  float* out;  // [rows, inputs], contiguous
  int64_t rows;
};

// Sums of rows of x, which are found by their places; a negative place is passed over.
struct Weigh {
  const uint16_t* x;
  int64_t x_stride;
  const int32_t* places;  // [rows, top_k]
  const float* shares;    // [rows, top_k]
  int64_t top_k;
  float* out;  // [rows, width], contiguous
  int64_t width;
};

// out = x + added, rounded to its type; all [rows, width] and contiguous.
struct Narrow {
  const float* x;
  const void* added;  // of out's type, or null
  void* out;
  int64_t rows;
  int64_t width;
  Type type;
};

// Rows of queries over their pages. Row i's queries are tokens first[i] .. first[i] + queries[i] - 1 of the step and
// the last ones of the row.
struct Attend {
  Pages pages;
  const void* q;  // [tokens, heads, dim], tokens q_stride apart
  int64_t q_stride;
  void* out;  // [tokens, heads * dim], contiguous
  Type type;  // of q and out
  const int32_t* table;  // [rows, table_stride]
  int64_t table_stride;
  const int32_t* keys;  // [rows]: how many tokens the row has, those of the step included
  const int32_t* first;    // [rows]
  const int32_t* queries;  // [rows]
  int64_t rows;
  int64_t window;  // a query sees so many of the last tokens up to its own; 0: all
  int64_t group;   // query heads of a KV head
  float scale;
};

// Put kv, [tokens of the step, 2, kv_heads, dim], where the tokens of the rows belong. Of `rows` only what places them is
// read.
struct StoreRows {
  Attend rows;
  const void* kv;
  int64_t kv_stride;  // from token to token
};

// Attention of rows of one query each.
struct Decode {
  Attend rows;
};

// Of rows of any number of queries.
struct Chunk {
  Attend rows;
};

// Queries of one row and query heads of one KV head: at most kTileQueries of both together.
constexpr int64_t kTileQueries = 64;
struct Tile {
  int64_t row;
  int64_t kv_head;
  int64_t first_query;  // of the row's in this step
  int64_t queries;
  int64_t first_head;  // of the group
  int64_t heads;
};

// The kernels of a level. Ranges are of strips, rows, places or KV heads, so that the caller spreads them.
struct Table {
  const char* name;
  size_t (*linear_scratch)(const Linear&);
  void (*linear)(const Linear&, int64_t first_strip, int64_t last_strip, void* scratch);
  void (*norm)(const Norm&, int64_t first, int64_t last);
  void (*gate)(const Gate&, int64_t first, int64_t last);
  void (*rotate)(const Rotate&, int64_t first, int64_t last);
  void (*add)(const Add&, int64_t first, int64_t last);
  void (*turns)(const Turns&, int64_t first, int64_t last);
  void (*argmax)(const Argmax&, int64_t first, int64_t last);
  size_t (*draw_scratch)(const Draw&);
  void (*draw)(const Draw&, int64_t first, int64_t last, void* scratch);
  void (*scores)(const Route&, float* scores, int64_t first, int64_t last);  // of blocks of kExpertsAtOnce experts
  void (*weigh)(const Weigh&, int64_t first, int64_t last);
  void (*narrow)(const Narrow&, int64_t first, int64_t last);
  void (*store)(const Store&, int64_t first, int64_t last);  // of places
  size_t (*decode_scratch)(const Attend&);
  // A row of one query, KV heads from..to-1.
  void (*decode)(const Attend&, int64_t row, int64_t from, int64_t to, void* scratch);
  // Rows of several. bfloat16 alone, dimensions a multiple of 32.
  size_t (*chunk_scratch)(const Attend&);
  void (*chunk)(const Attend&, const Tile&, void* scratch);
};

extern const Table kGeneric;
#ifdef CPU_KERNELS_X86
extern const Table kAvx2;
extern const Table kAvx512;
extern const Table kAmx;
#endif

}  // namespace cpu_kernels
