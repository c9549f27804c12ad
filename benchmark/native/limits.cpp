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

constexpr size_t kBytes = 128 << 20, kPart = 8 << 20, kHuge = 2 << 20;
// A round takes half a millisecond, so that some pass without another program on any core.
constexpr int64_t kTurns = 300'000;
constexpr int kRounds = 600;
std::atomic<uint64_t> sink;

char* memory() {
  auto* raw = static_cast<char*>(
      mmap(nullptr, kBytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char* start = raw + (kHuge - reinterpret_cast<uintptr_t>(raw) % kHuge);
  madvise(start, kBytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < kBytes; i += 64) start[i] = 1;
  return start;
}

// A part that has been away from the caches since its last turn.
double read_part(const char* data, int round) {
  data += round * kPart % kBytes;
  constexpr size_t kAhead = 4096;  // the best of 1, 2, 4 and 8 KiB on Zen 3
  uint64_t sums[8] = {};
  for (size_t i = 0; i < kPart; i += 64) {
    __builtin_prefetch(data + i + kAhead, 0, 2);
    const auto* words = reinterpret_cast<const uint64_t*>(data + i);
    for (int word = 0; word < 8; word++) sums[word] += words[word];
  }
  for (uint64_t sum : sums) sink += sum;
  return kPart;
}

#if defined(__AVX512BF16__)
typedef float Sum __attribute__((vector_size(64)));
constexpr int kOperations = 64;
#define MULTIPLY(x) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(x) : "v"(factor));
#elif defined(__AVX512F__)
typedef float Sum __attribute__((vector_size(64)));
constexpr int kOperations = 32;
#define MULTIPLY(x) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(x) : "v"(factor));
#else
typedef float Sum __attribute__((vector_size(32)));
constexpr int kOperations = 16;
#define MULTIPLY(x) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(x) : "x"(factor));
#endif

// Twelve sums hide the latency of two operations a cycle. By name: an array would lie in memory.
double multiply_all() {
  const Sum factor{};
  Sum a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
  for (int64_t turn = 0; turn < kTurns; turn++) {
    MULTIPLY(a) MULTIPLY(b) MULTIPLY(c) MULTIPLY(d) MULTIPLY(e) MULTIPLY(f)
    MULTIPLY(g) MULTIPLY(h) MULTIPLY(i) MULTIPLY(j) MULTIPLY(k) MULTIPLY(l)
  }
  return static_cast<double>(kTurns) * 12 * kOperations;
}

// The best rate of the rounds, in which all threads work at once. Threads wait for each other awake.
template <typename F> double best(int threads, F&& work) {
  std::atomic<int> arrived{0};
  std::atomic<double> done{0};
  double most = 0;
  const auto run = [&](int index) {
    for (int round = 0; round < kRounds; round++) {
      arrived++;
      while (arrived < threads * (2 * round + 1)) _mm_pause();
      const auto begun = std::chrono::steady_clock::now();
      done += work(index, round);
      arrived++;
      while (arrived < threads * (2 * round + 2)) _mm_pause();
      if (index) continue;
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
      most = std::max(most, done.exchange(0) / seconds.count());
    }
  };
  std::vector<std::thread> team;
  for (int index = 1; index < threads; index++) team.emplace_back(run, index);
  run(0);
  for (std::thread& thread : team) thread.join();
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  std::vector<char*> data;
  for (int index = 0; index < threads; index++) data.push_back(memory());
  const double bytes = best(threads, [&](int index, int round) { return read_part(data[index], round); });
  const double operations = best(threads, [](int, int) { return multiply_all(); });
  std::printf("%d %.6g %.6g\n", threads, bytes, operations);
  return 0;
}
