// SPDX-License-Identifier: MIT
#include "transducer/product.h"

#include "cpu/threads.h"

#include <algorithm>

namespace octavo::transducer {
namespace {

struct Product {
  std::int64_t depth;
  Matrix a;
  const float* b;
  std::int64_t b_row;
  float* to;
  std::int64_t to_row;

  // A block of the result, in registers over the whole depth.
  template <int kRows, int kCols>
  void block(std::int64_t i, std::int64_t j) const {
    float sum[kRows][kCols];
    for (int r = 0; r < kRows; ++r) std::copy_n(to + (i + r) * to_row + j, kCols, sum[r]);
    for (std::int64_t k = 0; k < depth; ++k) {
      const float* const x = b + k * b_row + j;
      for (int r = 0; r < kRows; ++r) {
        const float factor = a.data[(i + r) * a.row + k * a.col];
        for (int c = 0; c < kCols; ++c) sum[r][c] += factor * x[c];
      }
    }
    for (int r = 0; r < kRows; ++r) std::copy_n(sum[r], kCols, to + (i + r) * to_row + j);
  }

  template <int kCols>
  void column(std::int64_t begin, std::int64_t end, std::int64_t j) const {
    std::int64_t i = begin;
    for (; i + 4 <= end; i += 4) block<4, kCols>(i, j);
    for (; i < end; ++i) block<1, kCols>(i, j);
  }

  void part(std::int64_t begin, std::int64_t end, std::int64_t left, std::int64_t right) const {
    std::int64_t j = left;
    for (; j + 16 <= right; j += 16) column<16>(begin, end, j);
    for (; j + 4 <= right; j += 4) column<4>(begin, end, j);
    for (; j < right; ++j) column<1>(begin, end, j);
  }
};

}  // namespace

void add_product(std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& a, const float* b,
                 std::int64_t b_row, float* to, std::int64_t to_row, int threads) {
  constexpr std::int64_t kPart = 64;
  const Product product{depth, a, b, b_row, to, to_row};
  const std::int64_t across = (cols + kPart - 1) / kPart, down = (rows + kPart - 1) / kPart;
  auto body = [&](std::int64_t n, cpu::Scratch&) {
    const std::int64_t i = n / across * kPart, j = n % across * kPart;
    product.part(i, std::min(rows, i + kPart), j, std::min(cols, j + kPart));
  };
  cpu::parallel_for(down * across, threads, body);
}

}  // namespace octavo::transducer
