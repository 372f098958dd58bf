// Division that rounds up, for the sizes of grids and of their outputs. This header does not need CUDA,
// because memory predictions also use the sizes in builds without CUDA.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train::cuda {

constexpr std::int64_t ceil_div(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

}  // namespace octavo_train::cuda
