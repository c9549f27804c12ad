// Plain C++: any CPU.
#define LANES 4
#include "chunk_float.hpp"
#include "draw.hpp"
#include "elementwise.hpp"
#include "linear_vector.hpp"
#include "sparse.hpp"

namespace cpu_kernels {
const Table kGeneric = {"generic", linear_scratch, linear, norm, gate, rotate, add, turns, argmax, draw_scratch, draw,
                        scores, weigh, narrow, store, decode_scratch_float, decode_float, chunk_scratch_float, chunk_float};
}
