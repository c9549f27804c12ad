// AVX2 and FMA: x86-64-v3.
#define LANES 8
#include "chunk_float.hpp"
#include "draw.hpp"
#include "elementwise.hpp"
#include "linear_vector.hpp"
#include "sparse.hpp"

namespace cpu_kernels {
const Table kAvx2 = {"avx2", linear_scratch, linear, norm, gate, rotate, add, turns, argmax, draw_scratch, draw,
                     scores, weigh, narrow, store, decode_scratch_float, decode_float, chunk_scratch_float, chunk_float};
}
