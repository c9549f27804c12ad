#include "parallel.hpp"

#include <dlfcn.h>

#include <bit>
#include <cstdlib>
#include <new>

namespace cpu_kernels {
namespace {

struct Block {
  void* data = nullptr;
  size_t size = 0;
  ~Block() { std::free(data); }

  void* of(size_t bytes) {
    if (bytes > size) {
      std::free(data);
      size = 0;
      data = std::aligned_alloc(64, std::bit_ceil(bytes < 4096 ? size_t{4096} : bytes));
      if (!data) throw std::bad_alloc();
      size = std::bit_ceil(bytes < 4096 ? size_t{4096} : bytes);
    }
    return data;
  }
};

// libgomp's entry points, which LLVM's and Intel's runtimes have too. torch loads its runtime for the whole process.
struct OpenMP {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
  int (*max_threads)();
  int (*thread)();
  int (*count)();

  template <typename F> static void find(F& f, const char* name) { f = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name)); }

  OpenMP() {
    find(parallel, "GOMP_parallel");
    find(max_threads, "omp_get_max_threads");
    find(thread, "omp_get_thread_num");
    find(count, "omp_get_num_threads");
    if (!max_threads || !thread || !count) parallel = nullptr;
  }
};

const OpenMP& openmp() {
  static const OpenMP found;
  return found;
}

struct Region {
  void (*body)(void*, int, int);
  void* context;
};

}  // namespace

void* scratch(size_t bytes) {
  thread_local Block block;
  return block.of(bytes);
}

void* shared_scratch(size_t bytes) {
  thread_local Block block;
  return block.of(bytes);
}

int threads() { return openmp().parallel ? openmp().max_threads() : 1; }

void run(int count, void (*body)(void*, int, int), void* context) {
  if (count == 1 || !openmp().parallel) return body(context, 0, 1);
  Region region{body, context};
  openmp().parallel(
      [](void* p) {
        const Region& r = *static_cast<Region*>(p);
        r.body(r.context, openmp().thread(), openmp().count());
      },
      &region, static_cast<unsigned>(count), 0);
}

}  // namespace cpu_kernels
