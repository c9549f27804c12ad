#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "board.hpp"
#include "shared_file.hpp"

namespace fuzz {

constexpr unsigned char kPoison = 0xEE;

[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Memory behind a memfd, `kLayers` x `kPages` extents of `page_bytes`.
class Pool {
 public:
  explicit Pool(uint64_t page_bytes);
  unsigned char* base() const { return reinterpret_cast<unsigned char*>(mapping_.base()); }
  uint64_t nbytes() const { return mapping_.nbytes(); }
  int fd() const { return file_.fd(); }
  uint64_t layer_bytes() const { return kPages * page_bytes_; }
  unsigned char* extent(int layer, int32_t page) const { return base() + uint64_t(layer) * layer_bytes() + uint64_t(page) * page_bytes_; }

  void fill_as_source_of(int node);  // bytes that tell node, layer, page and place, and are never the poison
  void poison(int32_t page);
  bool is_poison(int32_t page) const;
  bool is_copy(int32_t page, const Pool& source, int32_t of) const;

 private:
  uint64_t page_bytes_;
  pyfabric::File file_;
  pyfabric::SharedMapping mapping_;
};

// What every node's source holds: all are filled by one rule.
std::vector<Pool> make_sources(uint64_t page_bytes);

// The free pages of a pool, as a set that gives up single pages and runs.
class FreePages {
 public:
  FreePages();
  size_t count() const { return pages_.size(); }
  bool holds(int32_t page) const { return places_[size_t(page)] >= 0; }
  const std::vector<int32_t>& all() const { return pages_; }
  void take(int32_t page);
  void give(int32_t page);

 private:
  std::vector<int32_t> pages_;
  std::array<int32_t, kPages> places_;
};

}  // namespace fuzz
