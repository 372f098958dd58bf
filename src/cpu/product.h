// Products of fp32 matrices on the CPU. A sum is made in the order of its terms and rounded one term at a
// time: one that is made in parts, or by several threads, has the bits of the whole.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::cpu {

// Where the elements of a matrix are: (i, j) at data[i * row + j * col].
struct Matrix {
  const float* data;
  std::int64_t row, col;
};

// to(i, j) += sum over k of a(i, k) * b(k, j), by one thread. The columns of b and of `to` are contiguous;
// `b_row` and `to_row` are from one of their rows to the next.
void add_product_part(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a,
                      const float* b, std::int64_t b_row, float* to, std::int64_t to_row);

// The same by all threads.
void add_product(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a, const float* b,
                 std::int64_t b_row, float* to, std::int64_t to_row, int threads);

}  // namespace octavo::cpu
