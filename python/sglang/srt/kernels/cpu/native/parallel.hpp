// Threads and scratch memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "team.hpp"

namespace cpu_kernels {

// Memory of this thread, 64-byte aligned, kept and grown in powers of two.
void* scratch(size_t bytes);

// Memory of the calling thread that all of a parallel region's threads may use; kept likewise.
void* shared_scratch(size_t bytes);

// How many threads the caller may use: what OpenMP says, so torch.set_num_threads holds for these kernels too.
int threads();

// Every item of the job, on the calling thread and its own helpers.
void run(const Job& job, int threads);

template <typename F> void run(int64_t items, int64_t piece, int ranges, int threads, const F& body) {
  const auto call = [](const void* context, int64_t first, int64_t last) { (*static_cast<const F*>(context))(first, last); };
  run(Job{call, &body, items, piece, ranges}, threads);
}

// Ranges of `chunk` items, each taken by the thread that is free.
template <typename F> void share(int64_t items, int64_t chunk, bool parallel, const F& body) {
  const int count = parallel && items > chunk ? threads() : 1;
  if (count > 1) run(items, chunk, 1, count, body);
  else if (items) body(0, items);
}

// In how many pieces a thread's range is computed: a helper that comes late leaves the rest of them to the others.
constexpr int kPieces = 4;

// Equal items: each thread has one range, and what a thread has not come to the others do.
template <typename F> void split(int64_t items, bool parallel, const F& body) {
  const int count = parallel && items > 1 ? std::min(threads(), Team::kMostThreads) : 1;
  if (count > 1) run(items, (items + kPieces * count - 1) / (kPieces * count), count, count, body);
  else body(0, items);
}

}  // namespace cpu_kernels
