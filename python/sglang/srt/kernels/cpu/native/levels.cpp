#include "levels.hpp"

#include <stdexcept>

#ifdef CPU_KERNELS_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cpu_kernels {
namespace {

#ifdef CPU_KERNELS_X86
struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
  Leaf(unsigned leaf, unsigned sub) { __get_cpuid_count(leaf, sub, &a, &b, &c, &d); }
};

bool bit(unsigned word, int n) { return word >> n & 1; }

// What the operating system saves on a context switch (XCR0).
uint64_t saved_state() {
  if (!bit(Leaf(1, 0).c, 27)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool has_avx2() {
  const Leaf one(1, 0), seven(7, 0);
  return (saved_state() & 0x6) == 0x6 && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5) && bit(seven.b, 8);
}

bool has_avx512() {
  const Leaf seven(7, 0), more(7, 1);
  const bool foundation = bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  return (saved_state() & 0xe6) == 0xe6 && foundation && bit(more.a, 5);
}

bool has_amx() {
  const Leaf seven(7, 0);
  if ((saved_state() & 0x60000) != 0x60000 || !bit(seven.d, 22) || !bit(seven.d, 24)) return false;
  // Linux hands out the tiles only to processes that ask (Documentation/arch/x86/xstate.rst).
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<const Table*> find() {
  std::vector<const Table*> found{&kGeneric};
#ifdef CPU_KERNELS_X86
  if (has_avx2()) {
    found.push_back(&kAvx2);
    if (has_avx512()) {
      found.push_back(&kAvx512);
      if (has_amx()) found.push_back(&kAmx);
    }
  }
#endif
  return found;
}

}  // namespace

const std::vector<const Table*>& levels() {
  static const std::vector<const Table*> found = find();
  return found;
}

const Table& level(const std::string& name) {
  for (const Table* table : levels())
    if (name == table->name) return *table;
  throw std::invalid_argument("this CPU has no kernels of level " + name);
}

}  // namespace cpu_kernels
