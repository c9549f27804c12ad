// Plain C++: any CPU.
#define LANES 4
#include "decode.hpp"
#include "elementwise.hpp"
#include "linear_vector.hpp"

namespace cpu_kernels {
const Table kGeneric = {"generic", linear_scratch, linear, norm, gate, rotate, argmax, store,
                        decode_scratch, decode, nullptr, nullptr};
}
