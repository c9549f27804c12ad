// Linear layers by AMX tiles of 16 x 32 bfloat16 (Intel's optimization manual, chapter 20). Even one row is not better
// off with vectors: 12.5 GB/s of weights against 11.2 where the memory gave 13.
#pragma once

#include <immintrin.h>

#include "int8_avx512.hpp"

namespace {

constexpr int64_t kTile = 16;
constexpr int64_t kWeightStride = 2 * kStrip * 2;  // bytes from one pair of inputs to the next
constexpr int64_t kStepBytes = kTile * kWeightStride;
constexpr int64_t kAheadBytes = 4 * kStepBytes;

struct TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3 are sums, 4 and 5 rows of x, 6 and 7 weights. Of 32 rows the second 16 use tiles 2, 3 and 5. A function may
// use them otherwise as long as the number of rows fits.
INLINE void configure(int64_t rows, bool pair) {
  TileConfig config;
  const int64_t first = least(rows, kTile), second = pair ? rows - kTile : first;
  for (int tile = 0; tile < 8; tile++) {
    config.bytes[tile] = 64;
    config.rows[tile] = static_cast<uint8_t>(tile >= 6 ? 16 : tile == 4 || tile < 2 ? first : second);
  }
  if (!pair) config.rows[5] = 16;
  _tile_loadconfig(&config);
}

INLINE void clear_sums() {
  __asm__ volatile("" ::: "memory");  // gcc does not know that tile loads read memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

INLINE void prefetch_step(const char* weight) {
  for (int64_t line = 0; line < kStepBytes; line += 64) _mm_prefetch(weight + kAheadBytes + line, _MM_HINT_T1);
}

// At most 16 rows by a strip: four sums share the tile of x.
INLINE void multiply_single(const Linear& a, int64_t first, const char* weight, bool cold, float* sums) {
  const uint16_t* x = a.x + first * a.x_stride;
  const int64_t stride = a.x_stride * 2;
  clear_sums();
  for (int64_t k = 0; k < a.inputs; k += 32, weight += kStepBytes) {
    if (cold) prefetch_step(weight);
    _tile_loadd(4, x + k, stride);
    _tile_loadd(5, weight, kWeightStride);
    _tile_loadd(6, weight + 64, kWeightStride);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(7, weight + 128, kWeightStride);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(5, weight + 192, kWeightStride);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  }
  constexpr int64_t kOut = kStrip * 4;
  _tile_stored(0, sums, kOut);
  _tile_stored(1, sums + 16, kOut);
  _tile_stored(2, sums + 32, kOut);
  _tile_stored(3, sums + 48, kOut);
}

// 17 to 32 rows by half a strip: each tile that is loaded is multiplied twice.
INLINE void multiply_pair(const Linear& a, int64_t first, const char* weight, bool cold, float* sums) {
  const uint16_t* x = a.x + first * a.x_stride;
  const uint16_t* below = x + kTile * a.x_stride;
  const int64_t stride = a.x_stride * 2;
  clear_sums();
  for (int64_t k = 0; k < a.inputs; k += 32, weight += kStepBytes) {
    if (cold) prefetch_step(weight);
    _tile_loadd(4, x + k, stride);
    _tile_loadd(6, weight, kWeightStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + 64, kWeightStride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, below + k, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr int64_t kOut = kStrip * 4;
  _tile_stored(0, sums, kOut);
  _tile_stored(1, sums + 16, kOut);
  _tile_stored(2, sums + kTile * kStrip, kOut);
  _tile_stored(3, sums + kTile * kStrip + 16, kOut);
}

// A block of at most 32 rows by a strip.
INLINE void linear_tiles(const Linear& a, const uint16_t* from, int64_t strip, int64_t first, int64_t rows, bool cold,
                         float* sums) {
  const char* weight = reinterpret_cast<const char*>(from);
  if (rows <= kTile) {
    multiply_single(a, first, weight, cold, sums);
  } else {
    multiply_pair(a, first, weight, cold, sums);
    multiply_pair(a, first, weight + 128, false, sums + 32);
  }
  finish(a, strip, first, rows, sums);
}

size_t linear_scratch_amx(const Linear& a) { return 2 * kTile * kStrip * sizeof(float) + strip_space(a); }

void linear_amx(const Linear& a, int64_t first_strip, int64_t last_strip, void* scratch) {
  float* sums = static_cast<float*>(scratch);
  uint16_t* space = reinterpret_cast<uint16_t*>(sums + 2 * kTile * kStrip);
  const int64_t whole = a.rows / 32 * 32, rest = a.rows - whole;
  if (whole) {
    configure(32, true);
    for (int64_t strip = first_strip; strip < last_strip; strip++) {
      const uint16_t* weight = strip_of(a, strip, space);
      for (int64_t first = 0; first < whole; first += 32) linear_tiles(a, weight, strip, first, 32, first == 0, sums);
    }
  }
  if (rest) {
    configure(rest, rest > kTile);
    for (int64_t strip = first_strip; strip < last_strip; strip++)
      linear_tiles(a, strip_of(a, strip, space), strip, whole, rest, whole == 0, sums);
  }
  _tile_release();
}

}  // namespace
