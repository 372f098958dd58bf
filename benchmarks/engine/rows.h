// Decides which rows of a tensor have a gradient at a step: all of them, or only some, as in models whose
// batches touch few rows. A row without a gradient holds exact zeros; a row that never had a gradient has
// zero moments.
//
// Touched rows are scattered: a shuffle gives every row a rank. The shuffle depends only on the number of
// rows, so that all tensors of an expert have the same rank. Only the first `alive` ranks may have a
// gradient. With `draws`, a step makes `draws` draws among these ranks by Zipf's law (rank k with weight
// 1/k), with replacement. Without `draws`, all `alive` ranks have a gradient at every step.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/data.h"
#include "benchmarks/engine/shapes.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

struct RowRule {
  std::int64_t row = 0;   // elements per row; the last row of a vector may have fewer
  std::int64_t rows = 0;  // 0: the tensor has no rows, or all of them have a gradient
  std::int64_t alive = 0;
  std::int64_t draws = 0;
};

// Derives the rule from the tensor's role. If the tensor has rows, the share `zeros` of them never has a
// gradient.
RowRule row_rule(const TensorShape& tensor, double zeros);

// Parses "0.5" or "0,0.5,0.99". A usage Failure names the flag --zeros.
std::vector<double> parse_zeros(const std::string& text);

// Applies the rules to a list of tensors. Masks have one byte per row and are stored one tensor after
// another.
class GradRows {
 public:
  GradRows() = default;  // all elements of all tensors have a gradient at every step
  GradRows(std::span<const TensorShape> tensors, double zeros);

  // some_without(): some row of some tensor has no gradient. change(): the rows differ from step to step.
  [[nodiscard]] bool some_without() const { return bytes_ > 0; }
  [[nodiscard]] bool change() const { return change_; }

  // bytes() is the size of all masks. mask() returns a tensor's mask, whose `touched` points into `masks`.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] RowMask mask(std::size_t tensor, const std::byte* masks) const;
  // Returns one byte per row: 1 if the row has a gradient at this step, else 0.
  [[nodiscard]] std::vector<std::byte> masks_at(std::int64_t step) const;

  // Returns the share of all elements in rows that are 1 in `masks`.
  [[nodiscard]] double share(std::span<const std::byte> masks) const;

 private:
  struct Tensor {
    RowRule rule;
    std::int64_t numel = 0, at = 0;         // elements; offset of its mask
    std::vector<std::int64_t> row_of_rank;  // for alive ranks only
    std::vector<double> weight_up_to;       // cumulative weights of the ranks, if rows are drawn
  };
  std::vector<Tensor> tensors_;
  std::int64_t bytes_ = 0;
  bool change_ = false;
};

}  // namespace octavo::cli
