// A whole call of a kernel: work spread over threads, arguments brought into the form that kernels take.
#pragma once

#include "table.hpp"

namespace cpu_kernels {

inline int64_t padded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Below this many elements a second thread costs more than it brings. A helper that is awake costs less than a microsecond: a
// gate of 16 x 1,536 took 30 us alone and 15 with one, of 4 x 1,536 5 and 3 (Zen 3). One that sleeps is not waited for.
constexpr int64_t kWorthThreads = 1 << 12;

constexpr int64_t kChunksPerThread = 8;

// Up to so many rows a product reads its weights at the memory's speed, for which a thread wants one contiguous range.
constexpr int64_t kFewRows = 32;

// Elements of a packed weight.
int64_t packed_size(int64_t outputs, int64_t inputs);

// weight: [outputs, inputs], rows `stride` elements apart -> packed, see kStrip.
void pack(const uint16_t* weight, int64_t stride, int64_t outputs, int64_t inputs, uint16_t* packed);

// One call each. A linear layer's inputs need not be a multiple of kDepth. Lookup throws std::out_of_range for a number
// that the table does not have.
void perform(const Table& table, const Linear& call);
void perform(const Table& table, const Norm& call);
void perform(const Table& table, const Gate& call);
void perform(const Table& table, const Rotate& call);
void perform(const Table& table, const Add& call);
void perform(const Table& table, const Lookup& call);
void perform(const Table& table, const Turns& call);
void perform(const Table& table, const Argmax& call);
void perform(const Table& table, const Draw& call);
void perform(const Table& table, const Route& call);
void perform(const Table& table, const Experts& call);
void perform(const Table& table, const Narrow& call);
void perform(const Table& table, const StoreRows& call);
void perform(const Table& table, const Decode& call);
void perform(const Table& table, const Chunk& call);

}  // namespace cpu_kernels
