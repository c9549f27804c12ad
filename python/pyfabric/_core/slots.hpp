#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace pyfabric {

// What came in: every immediate, those for a slot that nobody expects, those beyond a slot's weight.
struct Credits {
  uint64_t immediates = 0, strays = 0, excess = 0;
};

// The receiving side's counting slots. An immediate is (slot << weight_bits) | weight.
class Slots {
 public:
  Slots(uint64_t count, uint32_t weight_bits);
  uint64_t max_weight() const { return (uint64_t(1) << weight_bits_) - 1; }
  uint64_t addressable() const { return uint64_t(1) << (32 - weight_bits_); }
  uint32_t immediate(uint64_t slot, uint64_t weight) const { return uint32_t(slot << weight_bits_ | weight); }

  // Throws std::invalid_argument when the slot is busy or out of range or the weight is 0.
  void expect(uint64_t slot, uint64_t weight);
  uint64_t forget(uint64_t slot);
  // True when some of the slot's weight has arrived, or may yet, and not all of it.
  bool incomplete(uint64_t slot);
  // Slots that wait for weight: the worker naps shorter while there are any.
  int64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }
  // Of whole batches only: an immediate that is counted has been told apart too, and one whose slot's end was heard is counted.
  Credits credits() const;
  // Credits a batch of immediates. Tells which slots became complete before anyone can forget() them.
  void credit(const uint32_t* immediates, size_t count, const std::function<void(uint64_t)>& complete);

 private:
  struct Slot {
    uint64_t expected = 0, received = 0;
    bool busy = false;
  };
  Slot& at(uint64_t slot);
  uint32_t weight_bits_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::atomic<int64_t> waiting_{0};
  Credits credits_;
};

}  // namespace pyfabric
