// What a machine gives: reading memory on huge pages, and multiplying in registers. Compiled with -march=native.
// Prints "<threads> <bytes a second> <operations a second>".
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBytes = 256 << 20, kHuge = 2 << 20;
constexpr int64_t kTurns = 20'000'000;
constexpr int kRounds = 9;
std::atomic<uint64_t> sink;

char* memory() {
  auto* raw = static_cast<char*>(
      mmap(nullptr, kBytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char* start = raw + (kHuge - reinterpret_cast<uintptr_t>(raw) % kHuge);
  madvise(start, kBytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < kBytes; i += 64) start[i] = 1;
  return start;
}

double read_all(const char* data) {
  constexpr size_t kAhead = 4096;  // the best of 1, 2, 4 and 8 KiB on Zen 3
  uint64_t sums[8] = {};
  for (size_t i = 0; i < kBytes; i += 64) {
    __builtin_prefetch(data + i + kAhead, 0, 2);
    const auto* words = reinterpret_cast<const uint64_t*>(data + i);
    for (int word = 0; word < 8; word++) sums[word] += words[word];
  }
  for (uint64_t sum : sums) sink += sum;
  return kBytes;
}

#if defined(__AVX512BF16__)
using Sum = __m512;
constexpr int kSums = 24, kOperations = 64;
inline Sum start() { return _mm512_set1_ps(1); }
inline Sum multiply(Sum sum) { return _mm512_dpbf16_ps(sum, __m512bh{}, __m512bh{}); }
#else
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Sum __attribute__((vector_size(4 * kLanes)));
constexpr int kSums = 10, kOperations = 2 * kLanes;
inline Sum start() { return Sum{} + 1.0f; }
inline Sum multiply(Sum sum) { return sum * 0.999f + 0.001f; }
#endif

#if defined(__AVX512F__)
#define REGISTER "+v"
#else
#define REGISTER "+x"
#endif
// The compiler may not see that all sums are alike, or it would compute one of them.
inline void hide(Sum& sum) { __asm__ volatile("" : REGISTER(sum)); }

template <size_t... I> double multiply_all(std::index_sequence<I...>) {
  Sum sums[] = {(static_cast<void>(I), start())...};
  (hide(sums[I]), ...);
  for (int64_t turn = 0; turn < kTurns; turn++) ((sums[I] = multiply(sums[I]), hide(sums[I])), ...);
  float total = 0;
  for (const Sum& sum : sums) total += reinterpret_cast<const float*>(&sum)[0];
  sink += static_cast<uint64_t>(total);
  return static_cast<double>(kTurns) * sizeof...(I) * kOperations;
}

// The best rate of some rounds in which all threads work at once.
template <typename F> double best(int threads, F&& work) {
  double most = 0;
  for (int round = 0; round < kRounds; round++) {
    std::vector<std::thread> team;
    std::atomic<double> done{0};
    const auto begun = std::chrono::steady_clock::now();
    for (int index = 0; index < threads; index++) team.emplace_back([&, index] { done += work(index); });
    for (std::thread& thread : team) thread.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    most = std::max(most, done / seconds.count());
  }
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  std::vector<char*> data;
  for (int index = 0; index < threads; index++) data.push_back(memory());
  const double bytes = best(threads, [&](int index) { return read_all(data[index]); });
  const double operations = best(threads, [](int) { return multiply_all(std::make_index_sequence<kSums>()); });
  std::printf("%d %.6g %.6g\n", threads, bytes, operations);
  return 0;
}
