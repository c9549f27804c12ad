// A whole call of a kernel: work spread over threads, arguments brought into the form that kernels take.
#pragma once

#include "table.hpp"

namespace cpu_kernels {

// Elements of a packed weight.
int64_t packed_size(int64_t outputs, int64_t inputs);

// weight: [outputs, inputs], rows `stride` elements apart -> packed, see kStrip.
void pack(const uint16_t* weight, int64_t stride, int64_t outputs, int64_t inputs, uint16_t* packed);

// `call.inputs` need not be a multiple of kDepth.
void call_linear(const Table& table, Linear call);
void call_norm(const Table& table, const Norm& call);
void call_gate(const Table& table, const Gate& call);
void call_rotate(const Table& table, const Rotate& call);

void call_argmax(const Table& table, const Argmax& call);

// Puts kv, [tokens of the step, 2, kv_heads, dim], tokens kv_stride apart, where the tokens of the call's rows belong. Of
// `call` only what places tokens is read.
void call_store(const Table& table, const Attend& call, const void* kv, int64_t kv_stride);

// Rows of one query each.
void call_decode(const Table& table, const Attend& call);

// Rows of any number of queries.
void call_chunk(const Table& table, const Attend& call);

}  // namespace cpu_kernels
