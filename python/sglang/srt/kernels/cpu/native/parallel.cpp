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

int one() { return 1; }

}  // namespace

void* scratch(size_t bytes) {
  thread_local Block block;
  return block.of(bytes);
}

void* shared_scratch(size_t bytes) {
  thread_local Block block;
  return block.of(bytes);
}

int threads() {
  // libgomp's name, which LLVM's and Intel's runtimes have too. torch loads its runtime for the whole process.
  static int (*const most)() = [] {
    auto* found = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return found ? found : one;
  }();
  return most();
}

void run(const Job& job, int threads) {
  thread_local Team team;
  team.work(job, threads);
}

}  // namespace cpu_kernels
