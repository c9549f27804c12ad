#include "slots.hpp"

#include <stdexcept>
#include <string>

namespace pyfabric {

Slots::Slots(uint64_t count, uint32_t weight_bits) : weight_bits_(weight_bits) {
  if (weight_bits < 1 || weight_bits > 31) throw std::invalid_argument("weight_bits must be 1..31");
  if (count < 1 || count > addressable()) throw std::invalid_argument("slots must be 1.." + std::to_string(addressable()));
  slots_.resize(count);
}

Slots::Slot& Slots::at(uint64_t slot) {
  if (slot >= slots_.size())
    throw std::invalid_argument("slot " + std::to_string(slot) + " is outside 0.." + std::to_string(slots_.size() - 1));
  return slots_[slot];
}

void Slots::expect(uint64_t slot, uint64_t weight) {
  const std::lock_guard lock(mutex_);
  Slot& s = at(slot);
  if (weight == 0) throw std::invalid_argument("weight must be positive");
  if (s.busy) throw std::invalid_argument("slot " + std::to_string(slot) + " is busy");
  s = {weight, 0, true};
  ++waiting_;
}

uint64_t Slots::forget(uint64_t slot) {
  const std::lock_guard lock(mutex_);
  Slot& s = at(slot);
  if (!s.busy) throw std::invalid_argument("slot " + std::to_string(slot) + " is not expected");
  if (s.received < s.expected) --waiting_;
  s.busy = false;
  return s.received;
}

bool Slots::incomplete(uint64_t slot) {
  const std::lock_guard lock(mutex_);
  const Slot& s = at(slot);
  return s.busy && s.received < s.expected;
}

Credits Slots::credits() const {
  const std::lock_guard lock(mutex_);
  return credits_;
}

void Slots::credit(const uint32_t* immediates, size_t count, const std::function<void(uint64_t)>& complete) {
  const std::lock_guard lock(mutex_);
  credits_.immediates += count;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t slot = immediates[i] >> weight_bits_, weight = immediates[i] & max_weight();
    if (slot >= slots_.size() || !slots_[slot].busy) {
      ++credits_.strays;
      continue;
    }
    Slot& s = slots_[slot];
    const bool before = s.received >= s.expected;
    s.received += weight;
    if (s.received > s.expected) ++credits_.excess;
    if (before || s.received < s.expected) continue;
    --waiting_;
    complete(slot);
  }
}

}  // namespace pyfabric
