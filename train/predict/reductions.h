// What torch's reductions take of a GPU's memory besides their results: sums over rows are made of partial
// ones, which many blocks leave in global memory. It is up to a hundred megabytes, for as long as the kernel
// runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/plan.h>

#include <cstdint>

namespace octavo::train {

// Bytes for the sums of [rows, columns] over its rows, of elements whose columns lie side by side, in fp32.
// It follows how torch (2.5 to 2.13) divides such a sum among threads and blocks.
std::int64_t row_sum_bytes(const octavo::plan::Gpu& gpu, std::int64_t rows, std::int64_t columns);

}  // namespace octavo::train
