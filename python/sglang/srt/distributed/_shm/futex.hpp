#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace shm {

constexpr int64_t kPatienceNs = 100'000'000;  // how late an abort may be noticed

// Sleeps while the word still reads `seen`, at most kPatienceNs. Shared between processes, hence no FUTEX_PRIVATE_FLAG.
inline void sleep_on(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec limit{0, kPatienceNs};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline uint64_t now_ns() {
  timespec at{};
  clock_gettime(CLOCK_MONOTONIC, &at);
  return uint64_t(at.tv_sec) * 1'000'000'000 + uint64_t(at.tv_nsec);
}

}  // namespace shm
