// Multiplies fp32 matrices on the CPU. A sum adds its terms in order and rounds after each term, so a sum
// that is computed in parts, or by several threads, has the same bits.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::cpu {

// The layout of a matrix: element (i, j) is at data[i * row + j * col].
struct Matrix {
  const float* data;
  std::int64_t row, col;
};

// Computes to(i, j) += sum over k of a(i, k) * b(k, j) on one thread. The columns of b and of `to` are
// contiguous; `b_row` and `to_row` are the strides of their rows.
void add_product_part(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a,
                      const float* b, std::int64_t b_row, float* to, std::int64_t to_row);

// Computes the same on all threads.
void add_product(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a, const float* b,
                 std::int64_t b_row, float* to, std::int64_t to_row, int threads);

}  // namespace octavo::cpu
