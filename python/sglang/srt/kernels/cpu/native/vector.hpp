// Vectors of LANES floats by the compiler's own extension: one source for every level, compiled under its flags.
// Everything has internal linkage, or the linker would merge the AVX-512 build of a function into the plain one.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if LANES == 8
#include <immintrin.h>
#endif

#include "table.hpp"

namespace {

using cpu_kernels::Type;

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

#define INLINE_LAMBDA __attribute__((always_inline))
#define INLINE inline __attribute__((always_inline))

// Keeps a sum in its register: gcc 12 interleaves the rows of a product until its 12 sums no longer fit, which made 66
// GFLOP/s of 94 (Zen 3). With AVX-512 there are twice as many registers.
#if defined(__x86_64__) && LANES < 16
#define HOLD(sum) __asm__ volatile("" : "+x"(sum))
#else
#define HOLD(sum)
#endif

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

INLINE Floats broadcast(float x) { return x - Floats{}; }
// A cast between vectors of one size keeps the bits.
INLINE Floats as_floats(Words w) { return (Floats)w; }
INLINE Words as_words(Floats f) { return (Words)f; }
INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

INLINE float widen(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

INLINE float value_of(uint16_t x) { return widen(x); }
INLINE float value_of(float x) { return x; }

// To nearest, ties to even; NaN stays NaN.
INLINE Words narrow_words(Floats x) {
  const Words bits = as_words(x);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return x == x ? rounded : (bits >> 16) | 0x40;
}

template <typename T> INLINE Floats load(const T* p);
template <> INLINE Floats load(const float* p) {
  Floats out;
  memcpy(&out, p, sizeof out);
  return out;
}
template <> INLINE Floats load(const uint16_t* p) {
  Halves raw;
  memcpy(&raw, p, sizeof raw);
#if LANES == 8
  return as_floats((Words)_mm256_cvtepu16_epi32((__m128i)raw) << 16);  // gcc 12 makes four instructions of the conversion
#else
  return as_floats(__builtin_convertvector(raw, Words) << 16);
#endif
}

INLINE void save(float* p, Floats x) { memcpy(p, &x, sizeof x); }
INLINE void save(uint16_t* p, Floats x) {
  const Halves raw = __builtin_convertvector(narrow_words(x), Halves);
  memcpy(p, &raw, sizeof raw);
}

// The first n < LANES elements; the others read as zero and are not written.
template <typename T> INLINE Floats load_some(const T* p, int64_t n) {
  T buffer[LANES] = {};
  memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return load<T>(buffer);
}
template <typename T> INLINE void save_some(T* p, Floats x, int64_t n) {
  T buffer[LANES];
  save(buffer, x);
  memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

template <typename T> INLINE T rounded(float x) {
  T out;
  save_some<T>(&out, broadcast(x), 1);
  return out;
}

// Vectors of `size` elements, the last one shorter. The body gets where one begins, and what reads and writes it there.
template <typename F> INLINE void each(int64_t size, F&& body) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES)
    body(i, [](const auto* p) INLINE_LAMBDA { return load(p); }, [](auto* p, Floats x) INLINE_LAMBDA { save(p, x); });
  const int64_t rest = size - i;
  if (rest)
    body(i, [rest](const auto* p) INLINE_LAMBDA { return load_some(p, rest); },
         [rest](auto* p, Floats x) INLINE_LAMBDA { save_some(p, x, rest); });
}

// Lane i is lane i + STEP of x; STEP lanes of the result mean nothing.
template <int STEP, size_t... LANE> INLINE Floats down(Floats x, std::index_sequence<LANE...>) {
  return __builtin_shufflevector(x, x, ((LANE + STEP) % LANES)...);
}

template <int STEP = LANES / 2> INLINE float sum(Floats x) {
  x += down<STEP>(x, std::make_index_sequence<LANES>());
  if constexpr (STEP == 1) return x[0];
  else return sum<STEP / 2>(x);
}

template <int STEP = LANES / 2> INLINE float largest(Floats x) {
  x = larger(x, down<STEP>(x, std::make_index_sequence<LANES>()));
  if constexpr (STEP == 1) return x[0];
  else return largest<STEP / 2>(x);
}

// e^x within 2 units in the last place; 0 below -87. Cephes' scheme (S. Moshier): 2^n times a polynomial in the rest.
INLINE Floats exponential(Floats x) {
  const Floats low = broadcast(-87.0f), high = broadcast(88.0f);
  const auto underflow = x < low;
  x = x > high ? high : x;
  x = underflow ? low : x;
  const Floats shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 leaves the rounded integer in the low bits
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Words scale = (as_words(shifted) + (127u - 0x4b400000u)) << 23;
  const Floats out = p * as_floats(scale);
  return underflow ? Floats{} : out;
}

}  // namespace
