// AVX-512 with bfloat16 products: Zen 4, Cooper Lake, Sapphire Rapids.
#define LANES 16
#include "chunk_avx512.hpp"
#include "draw.hpp"
#include "elementwise.hpp"
#include "linear_avx512.hpp"
#include "sparse.hpp"

namespace cpu_kernels {
const Table kAvx512 = {"avx512_bf16", linear_scratch512, linear512, norm, gate, rotate, add, turns, argmax, draw_scratch, draw,
                       scores, weigh, narrow, store, decode_scratch512, decode512, chunk_scratch512, chunk512};
}
