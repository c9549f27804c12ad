// The helpers of one calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace cpu_kernels {

// Items to be computed. Each thread takes pieces of its own range first, and of the others' when that is done.
struct Job {
  void (*body)(const void* context, int64_t first, int64_t last);
  const void* context;
  int64_t items;
  int64_t piece;
  int ranges;
};

// Threads that help their caller and nobody else. Of a job they do what they come to: the caller waits for nobody who
// has not begun, so a helper that sleeps, or whose core is another program's, costs its help and no more. Between jobs
// a helper stays awake for a while. That is also why OpenMP's are not used: libgomp lets its helpers sleep at once where
// it has counted more threads than cores, and every thread that ever called it counts (a step of two threads then took
// 27 ms in place of 14).
class Team {
 public:
  Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team();

  // Returns when every item is done; by `threads` threads at most, the caller's included, and at most kMostThreads.
  void work(const Job& job, int threads);

  static constexpr int kMostThreads = 128;

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t last;
  };

  void hire(int helpers);
  void forget_if_forked();
  void help(int index);
  uint32_t await(uint32_t done);
  void take_part(int index);

  Job job_{};
  std::vector<Range> ranges_ = std::vector<Range>(kMostThreads);
  std::vector<std::thread> helpers_;
  uint32_t forks_ = 0;  // of this process before the helpers were hired: a fork takes none along
  // A job's number, and in the low byte how many helpers may still join it. Nobody joins after the caller has no piece left.
  alignas(64) std::atomic<uint32_t> state_{0};
  std::atomic<bool> ending_{false};
  alignas(64) std::atomic<uint32_t> left_{0};  // helpers that joined the job and are done with it
  alignas(64) std::atomic<uint32_t> asleep_{0};
};

}  // namespace cpu_kernels
