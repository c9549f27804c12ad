// Threads and scratch memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cpu_kernels {

// Memory of this thread, 64-byte aligned, kept and grown in powers of two.
void* scratch(size_t bytes);

// Memory of the calling thread that all of a parallel region's threads may use; kept likewise.
void* shared_scratch(size_t bytes);

// How many threads the caller may use: what OpenMP says, so torch.set_num_threads holds for these kernels too.
int threads();

// Runs body(context, index, count) on `count` threads of the OpenMP runtime that torch has loaded: a pool of our own
// would fight its spinning threads for the cores. Without such a runtime everything happens on the caller's thread.
void run(int count, void (*body)(void* context, int index, int count), void* context);

template <typename F> void run(int count, F& body) {
  run(count, [](void* context, int index, int n) { (*static_cast<F*>(context))(index, n); }, &body);
}

// Ranges of `chunk` items, each taken by the thread that is free.
template <typename F> void share(int64_t items, int64_t chunk, bool parallel, F&& body) {
  const int count = parallel && items > chunk ? threads() : 1;
  if (count == 1) {
    if (items) body(0, items);
    return;
  }
  std::atomic<int64_t> next{0};
  auto work = [&](int, int) {
    for (int64_t first; (first = next.fetch_add(chunk, std::memory_order_relaxed)) < items;)
      body(first, first + chunk < items ? first + chunk : items);
  };
  run(count, work);
}

// Equal items, each thread takes one range.
template <typename F> void split(int64_t items, bool parallel, F&& body) {
  const int count = parallel && items > 1 ? threads() : 1;
  if (count == 1) {
    body(0, items);
    return;
  }
  auto work = [&](int index, int n) {
    const int64_t first = items * index / n, last = items * (index + 1) / n;
    if (first < last) body(first, last);
  };
  run(count, work);
}

}  // namespace cpu_kernels
