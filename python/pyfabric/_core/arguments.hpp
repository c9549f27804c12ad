#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "program.hpp"

namespace pyfabric {

// Reads Engine.arm()'s arguments. Every wrong type or value becomes a ValueError that names the field.
std::unique_ptr<Program> read_program(std::shared_ptr<Counter> counter, nanobind::handle thresholds, nanobind::handle slot,
                                      nanobind::handle lanes);

}  // namespace pyfabric
