// Linear layers in float32 arithmetic, for CPUs without bfloat16 instructions.
#pragma once

#include <type_traits>

#include "linear_epilogue.hpp"

namespace {

constexpr int64_t kConverted = 256;  // rows of x held as float32 at a time: 1.5 MB at 1,536 inputs
constexpr int64_t kRowsAtOnce = 6;   // by 2 vectors of outputs: 12 sums, 2 weights, a mask and a broadcast are 16 registers
constexpr int64_t kPanelInputs = 128;  // of a strip that are multiplied by all rows in turn: 16 KiB of bfloat16, half of L1
constexpr int64_t kAhead = 8;  // blocks of rows over which asking for the next panel is spread
constexpr int64_t kApart = 16;  // floats between rows of x beyond their inputs: 4 KiB apart all would share one set of L1

// Of what is multiplied: `Raw` is how a weight lies in memory, and a product is that of the weight times `kUnit`.
struct Halves2 {
  using Raw = uint16_t;
  static constexpr float kUnit = 1.0f;
  // LANES pairs of weights, the first of a pair in the low half of a word.
  static INLINE Words pairs(const Raw* p) {
    Words words;
    memcpy(&words, p, sizeof words);
    return words;
  }
  static INLINE Floats value(Words high) { return as_floats(high); }
};
struct Bytes2 {
  using Raw = int8_t;
  static constexpr float kUnit = 65536.0f;  // a byte is left in the high half of its word
  static INLINE Words pairs(const Raw* p) {
#if LANES == 8
    return (Words)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));  // gcc 12 makes five of it
#else
    typedef int8_t Narrow __attribute__((vector_size(2 * LANES)));
    typedef int16_t Wide __attribute__((vector_size(4 * LANES)));
    Narrow raw;
    memcpy(&raw, p, sizeof raw);
    return (Words)__builtin_convertvector(raw, Wide);
#endif
  }
  static INLINE Floats value(Words high) { return __builtin_convertvector((Ints)high, Floats); }
};

INLINE int64_t apart(const Linear& a) { return a.inputs + kApart; }

size_t linear_scratch(const Linear& a) {
  const int64_t rows = least(a.rows, kConverted);
  return static_cast<size_t>(rows * (apart(a) + kStrip)) * sizeof(float);
}

// What of the next panel is asked for while this one is multiplied: as much as a pair of inputs has, for every `every`th
// pair. Asked for by the first rows alone, a panel came no sooner than they needed it, and the others waited for nothing.
struct Ahead {
  const char* at;  // null: nothing
  int64_t every;
};

// R rows by V vectors of outputs, added to sums (`fresh`: in place of them). x and weight point at the first of `inputs`
// inputs, weight at the first output too.
template <int R, int V, typename W>
INLINE void multiply(const float* x, int64_t x_stride, int64_t inputs, const typename W::Raw* weight, bool fresh,
                     Ahead ahead, float* sums) {
  constexpr int kBytes = 2 * V * LANES * static_cast<int>(sizeof(typename W::Raw));
  int64_t wait = ahead.at ? ahead.every : inputs;
  Floats acc[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) acc[r][v] = fresh ? Floats{} : load(sums + r * kStrip + v * LANES);
  for (int64_t k = 0; k < inputs; k += 2, weight += 2 * kStrip) {
    if (--wait == 0) {
      for (int byte = 0; byte < kBytes; byte += 64) __builtin_prefetch(ahead.at + byte, 0, 2);
      ahead.at += kBytes;
      wait = ahead.every;
    }
    Floats w[V];
    for (int v = 0; v < V; v++) w[v] = W::value(W::pairs(weight + v * 2 * LANES) << 16);
    for (int r = 0; r < R; r++) {
      const Floats each = broadcast(x[r * x_stride + k]);
      for (int v = 0; v < V; v++) acc[r][v] += w[v] * each;
      for (int v = 0; v < V; v++) HOLD(acc[r][v]);
    }
    // Read again: held from above, these vectors would be two more than there are registers.
    const typename W::Raw* again = weight;
    __asm__("" : "+r"(again));
    for (int v = 0; v < V; v++) w[v] = W::value(W::pairs(again + v * 2 * LANES) & 0xffff0000u);
    for (int r = 0; r < R; r++) {
      const Floats each = broadcast(x[r * x_stride + k + 1]);
      for (int v = 0; v < V; v++) acc[r][v] += w[v] * each;
      for (int v = 0; v < V; v++) HOLD(acc[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) save(sums + r * kStrip + v * LANES, acc[r][v]);
}

template <int R, int V, typename W>
INLINE void multiply_strip(const float* x, int64_t x_stride, int64_t inputs, const typename W::Raw* weight, bool fresh,
                           Ahead ahead, float* sums) {
  constexpr int64_t kWidth = V * LANES;
  for (int64_t part = 0; part < kStrip; part += kWidth) {
    multiply<R, V, W>(x, x_stride, inputs, weight + 2 * part, fresh, ahead, sums + part);
    if (ahead.at) ahead.at += inputs / 2 / ahead.every * (2 * kWidth) * static_cast<int64_t>(sizeof(typename W::Raw));
  }
}

template <typename W>
INLINE void multiply_rows(int64_t rows, const float* x, int64_t x_stride, int64_t inputs, const typename W::Raw* weight,
                          bool fresh, Ahead ahead, float* sums) {
  constexpr int kFew = LANES == 8 ? 2 : 1;  // registers of AVX2 hold twice as many outputs for few rows
  switch (rows) {
    case 1: multiply_strip<1, 4 * kFew, W>(x, x_stride, inputs, weight, fresh, ahead, sums); break;
    case 2: multiply_strip<2, 2 * kFew, W>(x, x_stride, inputs, weight, fresh, ahead, sums); break;
    case 3: multiply_strip<3, 2, W>(x, x_stride, inputs, weight, fresh, ahead, sums); break;
    case 4: multiply_strip<4, 2, W>(x, x_stride, inputs, weight, fresh, ahead, sums); break;
    case 5: multiply_strip<5, 2, W>(x, x_stride, inputs, weight, fresh, ahead, sums); break;
    default: multiply_strip<6, 2, W>(x, x_stride, inputs, weight, fresh, ahead, sums);
  }
}

// A panel of int8 as the bfloat16 values of its weights times Bytes2::kUnit, which is exact.
INLINE const uint16_t* expand_panel(const int8_t* panel, int64_t inputs, uint16_t* space) {
  for (int64_t i = 0; i < inputs * kStrip; i += 2 * LANES) {
    const Words both = Bytes2::pairs(panel + i);
    const Words even = as_words(Bytes2::value(both << 16)), odd = as_words(Bytes2::value(both & 0xffff0000u));
    const Words halves = even >> 16 | odd;
    memcpy(space + i, &halves, sizeof halves);
  }
  return space;
}

// Rows first .. first + rows - 1 of x, which are held as float32, by some strips.
template <typename W>
void linear_rows(const Linear& a, int64_t first, int64_t rows, int64_t first_strip, int64_t last_strip, const float* x,
                 float* sums) {
  alignas(64) uint16_t space[kPanelInputs * kStrip];
  using Raw = typename W::Raw;
  const int64_t blocks = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t at_once = (rows + blocks - 1) / blocks;  // 8 rows as 4 and 4, not as 6 and 2
  for (int64_t strip = first_strip; strip < last_strip; strip++) {
    const Raw* weight = reinterpret_cast<const Raw*>(a.weight) + strip * kStrip * a.inputs;
    for (int64_t k = 0; k < a.inputs; k += kPanelInputs) {
      const int64_t inputs = least(kPanelInputs, a.inputs - k);
      const Raw* panel = weight + k * kStrip;
      const char* next = reinterpret_cast<const char*>(panel + inputs * kStrip);
      const int64_t every = least(blocks, kAhead), share = inputs / 2 / every * (2 * kStrip) * static_cast<int64_t>(sizeof(Raw));
      const auto multiply_all = [&]<typename V>(const typename V::Raw* weights) INLINE_LAMBDA {
        for (int64_t r = 0, block = 0; r < rows; r += at_once, block++)
          multiply_rows<V>(least(at_once, rows - r), x + r * apart(a) + k, apart(a), inputs, weights, k == 0,
                           Ahead{block < every ? next + block * share : nullptr, every}, sums + r * kStrip);
      };
      if constexpr (std::is_same_v<W, Bytes2>)
        if (blocks > 2) { multiply_all.template operator()<Halves2>(expand_panel(panel, inputs, space)); continue; }
      multiply_all.template operator()<W>(panel);
    }
    finish(a, strip, first, rows, sums, 1.0f / W::kUnit);
  }
}

void linear(const Linear& a, int64_t first_strip, int64_t last_strip, void* scratch) {
  float* x = static_cast<float*>(scratch);
  for (int64_t first = 0; first < a.rows; first += kConverted) {
    const int64_t rows = least(kConverted, a.rows - first);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t k = 0; k < a.inputs; k += LANES)
        save(x + r * apart(a) + k, load(a.x + (first + r) * a.x_stride + k));
    float* sums = x + rows * apart(a);
    if (a.scales) linear_rows<Bytes2>(a, first, rows, first_strip, last_strip, x, sums);
    else linear_rows<Halves2>(a, first, rows, first_strip, last_strip, x, sums);
  }
}

}  // namespace
