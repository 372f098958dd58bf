// SPDX-License-Identifier: MIT
#include "cpu/product.h"

#include "cpu/threads.h"

#include <algorithm>

namespace octavo::cpu {
namespace {

struct Product {
  std::int64_t depth;
  Matrix a;
  const float* b;
  std::int64_t b_row;
  float* to;
  std::int64_t to_row;

  // Computes neighbouring elements in a row of the result, over the complete depth.
  template <int kCols>
  void neighbours(std::int64_t i, std::int64_t j) const {
    float sum[kCols];
    std::copy_n(to + i * to_row + j, kCols, sum);
    for (std::int64_t k = 0; k < depth; ++k) {
      const float factor = a.data[i * a.row + k * a.col];
      const float* const x = b + k * b_row + j;
      for (int c = 0; c < kCols; ++c) sum[c] += factor * x[c];
    }
    std::copy_n(sum, kCols, to + i * to_row + j);
  }

  void part(std::int64_t begin, std::int64_t end, std::int64_t left, std::int64_t right) const {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t j = left;
      for (; j + 64 <= right; j += 64) neighbours<64>(i, j);
      for (; j + 16 <= right; j += 16) neighbours<16>(i, j);
      for (; j + 4 <= right; j += 4) neighbours<4>(i, j);
      for (; j < right; ++j) neighbours<1>(i, j);
    }
  }
};

}  // namespace

void add_product_part(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a,
                      const float* b, std::int64_t b_row, float* to, std::int64_t to_row) {
  Product{depth, a, b, b_row, to, to_row}.part(0, rows, 0, cols);
}

void add_product(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a, const float* b,
                 std::int64_t b_row, float* to, std::int64_t to_row, int threads) {
  constexpr std::int64_t kPart = 64;
  const Product product{depth, a, b, b_row, to, to_row};
  const std::int64_t across = (cols + kPart - 1) / kPart, down = (rows + kPart - 1) / kPart;
  auto body = [&](std::int64_t n, Scratch&) {
    const std::int64_t i = n / across * kPart, j = n % across * kPart;
    product.part(i, std::min(rows, i + kPart), j, std::min(cols, j + kPart));
  };
  parallel_for(down * across, threads, body);
}

}  // namespace octavo::cpu
