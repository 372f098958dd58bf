// Sums over the rows of a matrix by a tree: neighbouring rows, neighbouring pairs of rows, and so on; a row
// without a neighbour goes to the next level unchanged. Rows are added one by one, and one sum per level is
// kept.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace octavo::fp8 {

// On a GPU, a cast writes the sums of tiles of rows. Then each level sums this number of rows into one.
inline constexpr std::int64_t kSumRows = 32;
constexpr std::int64_t summed_rows(std::int64_t rows) { return (rows + kSumRows - 1) / kSumRows; }
// Returns the rows of all levels, the first one included.
constexpr std::int64_t rows_of_levels(std::int64_t rows) {
  return rows <= 1 ? rows : rows + rows_of_levels(summed_rows(rows));
}

template <std::size_t kWidth>
class ColumnSums {
 public:
  using Row = std::array<float, kWidth>;

  void add(const Row& row) {
    Row sum = row;
    std::size_t level = 0;
    for (; ((count_ >> level) & 1U) != 0; ++level) join(levels_[level], sum);
    levels_[level] = sum;
    ++count_;
  }

  // REQUIRES: at least one row.
  [[nodiscard]] Row sum() const {
    std::size_t level = 0;
    while (((count_ >> level) & 1U) == 0) ++level;
    Row out = levels_[level];
    for (++level; (count_ >> level) != 0; ++level) {
      if (((count_ >> level) & 1U) != 0) join(levels_[level], out);
    }
    for (float& x : out) x += 0.0F;  // a zero becomes plus zero
    return out;
  }

 private:
  // The earlier rows are the left operand.
  static void join(const Row& left, Row& right) {
    for (std::size_t i = 0; i < kWidth; ++i) right[i] = left[i] + right[i];
  }

  std::array<Row, 49> levels_;  // for up to 2^48 rows
  std::uint64_t count_ = 0;
};

}  // namespace octavo::fp8
