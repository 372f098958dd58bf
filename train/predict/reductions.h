// Computes the temporary GPU memory of torch's reductions: in sums over rows, many blocks write partial sums
// to global memory. This is up to a hundred megabytes while the kernel runs.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/plan.h>

#include <cstdint>

namespace octavo_train {

// Returns the bytes of fp32 partial sums for a sum over the rows of [rows, columns] with contiguous columns.
// It follows how torch (2.5 to 2.13) divides such a sum among threads and blocks.
std::int64_t row_sum_bytes(const octavo::plan::Gpu& gpu, std::int64_t rows, std::int64_t columns);

}  // namespace octavo_train
