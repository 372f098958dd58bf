// Sizes of grids, and of what they leave: in headers without CUDA, because a plan of memory needs them where
// there is none.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::train::cuda {

constexpr std::int64_t ceil_div(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

}  // namespace octavo::train::cuda
