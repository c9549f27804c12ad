// Which kernels this machine can run.
#pragma once

#include <string>
#include <vector>

#include "table.hpp"

namespace cpu_kernels {

// Slowest first; the last is the best. Asks the kernel for AMX's registers where the CPU has them.
const std::vector<const Table*>& levels();

// The table of a name; throws std::invalid_argument for one that does not exist here.
const Table& level(const std::string& name);

}  // namespace cpu_kernels
