// Norm, gated activation, rotary embedding, residual sums, the largest of a row and the store into pages.
#pragma once

#include "vector.hpp"

namespace {

using namespace cpu_kernels;

template <typename T> INLINE void add_to(T* x, const T* y, int64_t n) {
  each(n, [&](int64_t i, auto get, auto put) INLINE_LAMBDA { put(x + i, get(x + i) + get(y + i)); });
}

template <typename T> void norm_rows(const Norm& a, int64_t first, int64_t last) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t row = first; row < last; row++)
    for (int64_t head = 0; head < a.heads; head++) {
      T* x = static_cast<T*>(a.x) + row * a.x_stride + head * a.x_head_stride;
      if (a.added) add_to(x, static_cast<const T*>(a.added) + row * a.size, a.size);
      T* out = static_cast<T*>(a.out) + row * a.out_stride + head * a.out_head_stride;
      Floats squares{};
      each(a.size, [&](int64_t i, auto get, auto) INLINE_LAMBDA {
        const Floats v = get(x + i);
        squares += v * v;
      });
      const float factor = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(a.size) + a.eps);
      each(a.size, [&](int64_t i, auto get, auto put) INLINE_LAMBDA {
        put(out + i, get(x + i) * factor * get(weight + i));
      });
    }
}

template <typename T> void gate_rows(const Gate& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const T* gate = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* up = gate + a.width;
    T* out = static_cast<T*>(a.out) + row * a.width;
    each(a.width, [&](int64_t i, auto get, auto put) INLINE_LAMBDA {
      const Floats g = get(gate + i);
      put(out + i, g / (exponential(-g) + 1.0f) * get(up + i));
    });
  }
}

template <typename T> void rotate_rows(const Rotate& a, int64_t first, int64_t last) {
  const int64_t half = a.dim / 2;
  for (int64_t row = first; row < last; row++) {
    const T* cosine = static_cast<const T*>(a.cosine) + row * a.dim;
    const T* sine = static_cast<const T*>(a.sine) + row * a.dim;
    for (int64_t head = 0; head < a.heads; head++) {
      T* x = static_cast<T*>(a.x) + row * a.x_stride + head * a.x_head_stride;
      each(half, [&](int64_t i, auto get, auto put) INLINE_LAMBDA {
        const Floats low = get(x + i), high = get(x + half + i);
        put(x + i, low * get(cosine + i) + high * get(sine + i));
        put(x + half + i, high * get(cosine + half + i) + low * get(sine + half + i));
      });
    }
  }
}

template <typename T> void add_rows(const Add& a, int64_t first, int64_t last) {
  add_to(static_cast<T*>(a.x) + first * a.width, static_cast<const T*>(a.y) + first * a.width, (last - first) * a.width);
}

template <typename T> void turn_rows(const Turns& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    T* cosine = static_cast<T*>(a.cosine) + row * 2 * a.pairs;
    T* sine = static_cast<T*>(a.sine) + row * 2 * a.pairs;
    for (int64_t i = 0; i < a.pairs; i++) {
      const float angle = static_cast<float>(a.positions[row]) * a.inverse[i];
      const float c = __builtin_cosf(angle) * a.magnitude, s = __builtin_sinf(angle) * a.magnitude;
      cosine[i] = cosine[a.pairs + i] = rounded<T>(c);
      sine[i] = rounded<T>(-s);
      sine[a.pairs + i] = rounded<T>(s);
    }
  }
}

INLINE void convert(const uint16_t* from, uint16_t* to, int64_t n) { memcpy(to, from, static_cast<size_t>(n) * 2); }
INLINE void convert(const float* from, float* to, int64_t n) { memcpy(to, from, static_cast<size_t>(n) * 4); }
INLINE void convert(const float* from, uint16_t* to, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) save(to + i, load(from + i));
  if (i < n) save_some(to + i, load_some(from + i, n - i), n - i);
}
INLINE void convert(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = widen(from[i]);
}

template <typename From, typename To> void store_places(const Store& a, int64_t first, int64_t last) {
  const int64_t dim = a.pages.dim, plane = a.pages.page_size * dim;
  for (int64_t i = first; i < last; i++) {
    const From* from = static_cast<const From*>(a.kv) + a.places[i].token * a.kv_stride;
    To* to = static_cast<To*>(a.pages.data) + a.places[i].element;
    for (int64_t part = 0; part < 2; part++)
      for (int64_t head = 0; head < a.pages.kv_heads; head++)
        convert(from + (part * a.pages.kv_heads + head) * dim, to + (head * 2 + part) * plane, dim);
  }
}

// Where the first of the largest is; NaN is never it.
template <typename T> int64_t largest_at(const T* x, int64_t size) {
  Floats best = broadcast(-__builtin_inff());
  Ints where{}, now{};
  for (int i = 0; i < LANES; i++) now[i] = i;
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES, now += LANES) {
    const Floats v = load(x + i);
    where = v > best ? now : where;
    best = larger(v, best);
  }
  float highest = -__builtin_inff();
  int64_t found = 0;
  for (int lane = 0; lane < LANES; lane++)
    if (best[lane] > highest || (best[lane] == highest && where[lane] < found)) highest = best[lane], found = where[lane];
  for (; i < size; i++) {
    const float v = value_of(x[i]);
    if (v > highest) highest = v, found = i;
  }
  return found;
}

template <typename T> void argmax_rows(const Argmax& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) a.out[row] = largest_at(static_cast<const T*>(a.x) + row * a.x_stride, a.size);
}

void norm(const Norm& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? norm_rows<float>(a, first, last) : norm_rows<uint16_t>(a, first, last);
}
void gate(const Gate& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? gate_rows<float>(a, first, last) : gate_rows<uint16_t>(a, first, last);
}
void rotate(const Rotate& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? rotate_rows<float>(a, first, last) : rotate_rows<uint16_t>(a, first, last);
}
void add(const Add& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? add_rows<float>(a, first, last) : add_rows<uint16_t>(a, first, last);
}
void turns(const Turns& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? turn_rows<float>(a, first, last) : turn_rows<uint16_t>(a, first, last);
}
void argmax(const Argmax& a, int64_t first, int64_t last) {
  a.type == Type::kFloat32 ? argmax_rows<float>(a, first, last) : argmax_rows<uint16_t>(a, first, last);
}
void store(const Store& a, int64_t first, int64_t last) {
  const bool wide = a.pages.type == Type::kFloat32;
  if (a.type == Type::kFloat32)
    wide ? store_places<float, float>(a, first, last) : store_places<float, uint16_t>(a, first, last);
  else
    wide ? store_places<uint16_t, float>(a, first, last) : store_places<uint16_t, uint16_t>(a, first, last);
}

}  // namespace
