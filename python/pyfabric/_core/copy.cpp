#include "copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pyfabric {

#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;
constexpr size_t kSmallest = 1024;  // below it the fence and the odd ends cost more than the cache does

__attribute__((target("avx512f"))) void stream_wide(char* to, const char* from, size_t lines) {
  for (; lines >= 4; lines -= 4, to += 4 * kLine, from += 4 * kLine) {
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + kLine);
    const __m512i c = _mm512_loadu_si512(from + 2 * kLine), d = _mm512_loadu_si512(from + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * kLine), d);
  }
  for (; lines; --lines, to += kLine, from += kLine)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

__attribute__((target("avx2"))) void stream_half(char* to, const char* from, size_t lines) {
  constexpr size_t kHalf = kLine / 2;
  for (; lines >= 2; lines -= 2, to += 2 * kLine, from += 2 * kLine) {
    const auto* in = reinterpret_cast<const __m256i*>(from);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + kHalf), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + kLine), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + kLine + kHalf), d);
  }
  for (; lines; --lines, to += kLine, from += kLine)
    for (size_t i = 0; i < kLine; i += kHalf)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}

// Every x86-64 has SSE2.
void stream_narrow(char* to, const char* from, size_t lines) {
  for (; lines; --lines, to += kLine, from += kLine)
    for (size_t i = 0; i < kLine; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
}

using Stream = void (*)(char* to, const char* from, size_t lines);

const Stream kStream = __builtin_cpu_supports("avx512f") ? stream_wide : __builtin_cpu_supports("avx2") ? stream_half : stream_narrow;

}  // namespace

void stream_copy(void* destination, const void* source, size_t nbytes) {
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  if (nbytes < kSmallest) {
    memcpy(to, from, nbytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  memcpy(to, from, head);
  const size_t lines = (nbytes - head) / kLine;
  kStream(to + head, from + head, lines);
  const size_t done = head + lines * kLine;
  memcpy(to + done, from + done, nbytes - done);
}

void stream_fence() { _mm_sfence(); }
#else
void stream_copy(void* to, const void* from, size_t nbytes) { memcpy(to, from, nbytes); }
void stream_fence() {}
#endif

}  // namespace pyfabric
