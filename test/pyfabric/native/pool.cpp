#include "pool.hpp"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fuzz {
namespace {

unsigned char byte_of(int node, int layer, int32_t page, uint64_t place) {
  uint64_t x = (uint64_t(node) << 40) ^ (uint64_t(layer) << 32) ^ (uint64_t(page) << 16) ^ (place / 8);
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  const auto value = static_cast<unsigned char>((x >> 24) + place);
  return value == kPoison ? 0 : value;
}

}  // namespace

void fault(const char* format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "FAULT (process %d): ", int(getpid()));
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  abort();
}

Pool::Pool(uint64_t page_bytes)
    : page_bytes_(page_bytes), file_(pyfabric::make_shared_file("fuzz-pool", uint64_t(kLayers) * kPages * page_bytes)) {
  if (!mapping_.open(file_.fd(), true)) fault("a pool cannot be mapped");
  memset(base(), kPoison, nbytes());
}

void Pool::fill_as_source_of(int node) {
  for (int layer = 0; layer < kLayers; ++layer)
    for (int32_t page = 0; page < kPages; ++page)
      for (uint64_t i = 0; i < page_bytes_; ++i) extent(layer, page)[i] = byte_of(node, layer, page, i);
}

void Pool::poison(int32_t page) {
  for (int layer = 0; layer < kLayers; ++layer) memset(extent(layer, page), kPoison, page_bytes_);
}

bool Pool::is_poison(int32_t page) const {
  for (int layer = 0; layer < kLayers; ++layer) {
    const unsigned char* at = extent(layer, page);
    if (at[0] != kPoison || memcmp(at, at + 1, page_bytes_ - 1) != 0) return false;
  }
  return true;
}

bool Pool::is_copy(int32_t page, const Pool& source, int32_t of) const {
  for (int layer = 0; layer < kLayers; ++layer)
    if (memcmp(extent(layer, page), source.extent(layer, of), page_bytes_) != 0) return false;
  return true;
}

std::vector<Pool> make_sources(uint64_t page_bytes) {
  std::vector<Pool> made;
  for (int node = 0; node < kNodes; ++node) made.emplace_back(page_bytes).fill_as_source_of(node);
  return made;
}

FreePages::FreePages() {
  for (int32_t page = 0; page < kPages; ++page) {
    places_[size_t(page)] = page;
    pages_.push_back(page);
  }
}

void FreePages::take(int32_t page) {
  const int32_t at = places_[size_t(page)];
  if (at < 0) fault("page %d was given out twice", page);
  pages_[size_t(at)] = pages_.back();
  places_[size_t(pages_[size_t(at)])] = at;
  pages_.pop_back();
  places_[size_t(page)] = -1;
}

void FreePages::give(int32_t page) {
  if (holds(page)) fault("page %d was freed twice", page);
  places_[size_t(page)] = int32_t(pages_.size());
  pages_.push_back(page);
}

}  // namespace fuzz
