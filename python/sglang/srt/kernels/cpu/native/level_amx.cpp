// AVX-512 with bfloat16 products and AMX: Sapphire Rapids and later.
#define LANES 16
#include "chunk_avx512.hpp"
#include "draw.hpp"
#include "elementwise.hpp"
#include "linear_amx.hpp"
#include "sparse.hpp"

namespace cpu_kernels {
const Table kAmx = {"amx_bf16", linear_scratch_amx, linear_amx, norm, gate, rotate, add, turns, argmax, draw_scratch, draw,
                    scores, weigh, narrow, store, decode_scratch512, decode512, chunk_scratch512, chunk512};
}
