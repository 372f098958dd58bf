// Products of fp32 matrices on the CPU, for the joint network.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::transducer {

// Where the elements of a matrix are: (i, j) at data[i * row + j * col].
struct Matrix {
  const float* data;
  std::int64_t row, col;
};

// to(i, j) += sum over k of a(i, k) * b(k, j), in the order of k and one rounding at a time: a sum that is
// made in parts has the bits of the whole. The columns of b and of `to` are contiguous; `to_row` is from one
// row of `to` to the next.
void add_product(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a, const float* b,
                 std::int64_t b_row, float* to, std::int64_t to_row, int threads);

}  // namespace octavo::transducer
