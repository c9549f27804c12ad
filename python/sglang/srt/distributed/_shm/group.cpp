#include "group.hpp"

#include <algorithm>
#include <cstring>

#include "futex.hpp"

namespace shm {
namespace {

constexpr uint64_t kSmallBytes = 32 * 1024;  // up to here every rank adds up everything: one barrier instead of two
constexpr uint32_t kMaxRanks = 64;
constexpr uint64_t kBlock = 1024;  // elements of a partial sum, so that it stays in the first-level cache

uint64_t width(Element element) { return element == Element::f32 ? 4 : element == Element::bf16 ? 2 : 8; }

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

// Round to nearest, ties to even, as torch does; a NaN stays one.
uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return value != value ? uint16_t(0x7fc0) : uint16_t(rounded);
}

template <typename T>
void add_all(T* out, const std::vector<const T*>& parts, uint64_t count) {
  std::copy_n(parts[0], count, out);
  for (size_t r = 1; r < parts.size(); ++r)
    for (uint64_t i = 0; i < count; ++i) out[i] += parts[r][i];
}

void add_all_bf16(uint16_t* out, const std::vector<const uint16_t*>& parts, uint64_t count) {
  float sums[kBlock];
  for (uint64_t i = 0; i < count; ++i) sums[i] = from_bf16(parts[0][i]);
  for (size_t r = 1; r < parts.size(); ++r)
    for (uint64_t i = 0; i < count; ++i) sums[i] += from_bf16(parts[r][i]);
  for (uint64_t i = 0; i < count; ++i) out[i] = to_bf16(sums[i]);
}

}  // namespace

Group::Group(uint64_t address, uint64_t nbytes, uint32_t rank, uint32_t size, uint64_t spin_ns)
    : header_(reinterpret_cast<Header*>(address)),
      slots_(reinterpret_cast<uint8_t*>(address) + sizeof(Header)),
      rank_(rank),
      size_(size),
      spin_ns_(spin_ns) {
  if (size < 1 || size > kMaxRanks || rank >= size) throw std::invalid_argument("rank or size out of range");
  if (address % 64 || nbytes < needed(size, 64)) throw std::invalid_argument("memory unaligned or too small");
  slot_bytes_ = (nbytes - sizeof(Header)) / (2 * uint64_t(size)) / 64 * 64;
}

uint64_t Group::needed(uint32_t size, uint64_t slot_bytes) { return sizeof(Header) + 2 * uint64_t(size) * slot_bytes; }

void Group::check() const {
  if (header_->aborted.value.load(std::memory_order_relaxed)) throw Aborted("the group of ranks was given up");
}

bool Group::passed(uint32_t round) const {
  return int32_t(header_->round.value.load(std::memory_order_acquire) - round) >= 0;
}

void Group::barrier() {
  const uint32_t round = uint32_t(++rounds_);
  header_->entered[rank_].value.store(rounds_, std::memory_order_relaxed);
  if (header_->arrived.value.fetch_add(1, std::memory_order_acq_rel) + 1 == rounds_ * size_) {
    // Sleepers announce themselves before their last look (both sides seq_cst), so no wake is lost.
    header_->round.value.store(round, std::memory_order_seq_cst);
    if (header_->sleepers.value.load(std::memory_order_seq_cst)) wake_all(header_->round.value);
    return;
  }
  if (spin_ns_) {
    const uint64_t end = now_ns() + spin_ns_;
    do {
      for (int i = 0; i < 32; ++i) {
        if (passed(round)) return;
        pause();
      }
    } while (now_ns() < end);
  }
  while (!passed(round)) {
    check();
    header_->sleepers.value.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = header_->round.value.load(std::memory_order_seq_cst);
    if (int32_t(seen - round) < 0) sleep_on(header_->round.value, seen);
    header_->sleepers.value.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Group::sum(uint8_t* out, uint64_t first, uint64_t count, Element element) const {
  for (uint64_t at = first; at < first + count; at += kBlock) {
    const uint64_t n = std::min(kBlock, first + count - at);
    if (element == Element::bf16) {
      std::vector<const uint16_t*> parts;
      for (uint32_t r = 0; r < size_; ++r) parts.push_back(reinterpret_cast<uint16_t*>(slot(r)) + at);
      add_all_bf16(reinterpret_cast<uint16_t*>(out) + (at - first), parts, n);
    } else if (element == Element::f32) {
      std::vector<const float*> parts;
      for (uint32_t r = 0; r < size_; ++r) parts.push_back(reinterpret_cast<float*>(slot(r)) + at);
      add_all(reinterpret_cast<float*>(out) + (at - first), parts, n);
    } else {
      std::vector<const int64_t*> parts;
      for (uint32_t r = 0; r < size_; ++r) parts.push_back(reinterpret_cast<int64_t*>(slot(r)) + at);
      add_all(reinterpret_cast<int64_t*>(out) + (at - first), parts, n);
    }
  }
}

void Group::reduce_small(uint8_t* data, uint64_t count, Element element) {
  memcpy(slot(rank_), data, count * width(element));
  barrier();
  sum(data, 0, count, element);
}

// Each rank adds up its share and leaves it in its own slot, where nobody else reads that share until all are done.
void Group::reduce_large(uint8_t* data, uint64_t count, Element element) {
  const uint64_t share = (count + size_ - 1) / size_, bytes = width(element);
  const auto start = [&](uint32_t r) { return std::min(uint64_t(r) * share, count); };
  memcpy(slot(rank_), data, count * bytes);
  barrier();
  const uint64_t first = start(rank_), mine = start(rank_ + 1) - first;
  sum(data + first * bytes, first, mine, element);
  memcpy(slot(rank_) + first * bytes, data + first * bytes, mine * bytes);
  barrier();
  for (uint32_t r = 0; r < size_; ++r)
    if (r != rank_) memcpy(data + start(r) * bytes, slot(r) + start(r) * bytes, (start(r + 1) - start(r)) * bytes);
}

void Group::all_reduce(uint64_t address, uint64_t count, Element element) {
  auto* data = reinterpret_cast<uint8_t*>(address);
  const uint64_t bytes = width(element);
  while (count) {
    const uint64_t n = std::min(count, slot_bytes_ / bytes);
    n * bytes <= kSmallBytes ? reduce_small(data, n, element) : reduce_large(data, n, element);
    bank_ ^= 1;
    data += n * bytes;
    count -= n;
  }
}

void Group::all_gather(uint64_t source, uint64_t rows, uint64_t row_bytes, uint64_t target) {
  const auto* from = reinterpret_cast<const uint8_t*>(source);
  auto* to = reinterpret_cast<uint8_t*>(target);
  const uint64_t columns = std::min(row_bytes, slot_bytes_);
  for (uint64_t column = 0; column < row_bytes; column += columns) {
    const uint64_t wide = std::min(columns, row_bytes - column), most = slot_bytes_ / wide;
    for (uint64_t row = 0; row < rows; row += most) {
      const uint64_t n = std::min(most, rows - row);
      for (uint64_t i = 0; i < n; ++i) memcpy(slot(rank_) + i * wide, from + (row + i) * row_bytes + column, wide);
      barrier();
      for (uint32_t r = 0; r < size_; ++r)
        for (uint64_t i = 0; i < n; ++i)
          memcpy(to + ((row + i) * size_ + r) * row_bytes + column, slot(r) + i * wide, wide);
      bank_ ^= 1;
    }
  }
}

void Group::broadcast(uint64_t address, uint64_t nbytes, uint32_t root) {
  if (root >= size_) throw std::invalid_argument("root out of range");
  auto* data = reinterpret_cast<uint8_t*>(address);
  while (nbytes) {
    const uint64_t n = std::min(nbytes, slot_bytes_);
    if (rank_ == root) memcpy(slot(root), data, n);
    barrier();
    if (rank_ != root) memcpy(data, slot(root), n);
    bank_ ^= 1;
    data += n;
    nbytes -= n;
  }
}

// Every rank lays out its rows as they are, in as many parts as the longest sender needs, and picks its own from all.
void Group::all_to_all(uint64_t source, uint64_t row_bytes, const std::vector<uint64_t>& counts, uint64_t target) {
  if (counts.size() != uint64_t(size_) * size_) throw std::invalid_argument("counts must be [size, size]");
  if (row_bytes < 1 || row_bytes > slot_bytes_) throw std::invalid_argument("a row must fit into a slot");
  const auto* from = reinterpret_cast<const uint8_t*>(source);
  const uint64_t most = slot_bytes_ / row_bytes;
  std::vector<uint64_t> total(size_), begin(size_);  // of each sender: all its rows; where those for this rank begin
  for (uint32_t r = 0; r < size_; ++r)
    for (uint32_t d = 0; d < size_; ++d) {
      if (d == rank_) begin[r] = total[r];
      total[r] += counts[r * size_ + d];
    }
  const uint64_t longest = *std::max_element(total.begin(), total.end());
  for (uint64_t first = 0; first < longest; first += most) {
    const uint64_t mine = std::min(first + most, total[rank_]);
    if (first < mine) memcpy(slot(rank_), from + first * row_bytes, (mine - first) * row_bytes);
    barrier();
    auto* to = reinterpret_cast<uint8_t*>(target);
    for (uint32_t r = 0; r < size_; ++r) {
      const uint64_t wanted = counts[r * size_ + rank_];
      const uint64_t start = std::max(begin[r], first), stop = std::min(begin[r] + wanted, first + most);
      if (start < stop) memcpy(to + (start - begin[r]) * row_bytes, slot(r) + (start - first) * row_bytes, (stop - start) * row_bytes);
      to += wanted * row_bytes;
    }
    bank_ ^= 1;
  }
}

void Group::abort() {
  header_->aborted.value.store(1, std::memory_order_seq_cst);
  wake_all(header_->round.value);
}

std::vector<uint64_t> Group::progress() const {
  std::vector<uint64_t> found(size_);
  for (uint32_t r = 0; r < size_; ++r) found[r] = header_->entered[r].value.load(std::memory_order_relaxed);
  return found;
}

}  // namespace shm
