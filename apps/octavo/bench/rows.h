// Which rows of a tensor have a gradient at a step: all of them, or as in models whose batches reach some
// rows only. A row without a gradient has exact zeros in it; one that never had any has zero moments.
//
// Rows are scattered: a shuffle that depends on their number alone gives every row a rank, so that the
// weights of an expert are those of one expert in all of its tensors. The first `alive` ranks may have a
// gradient, the others never do. With `draws`, a step draws that many of them by Zipf's law (rank k as 1/k),
// with replacement; without, every one of them has a gradient at every step.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/data.h"
#include "apps/octavo/bench/shapes.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

struct RowRule {
  std::int64_t row = 0;   // elements; the last row of a vector may have fewer
  std::int64_t rows = 0;  // 0: a tensor without rows, or with a gradient in all of them
  std::int64_t alive = 0;
  std::int64_t draws = 0;
};

// By the tensor's role, and where it has rows: `zeros` of them never have a gradient.
RowRule row_rule(const TensorShape& tensor, double zeros);

// "0.5" or "0,0.5,0.99"; a usage Failure names the flag --zeros.
std::vector<double> parse_zeros(const std::string& text);

// The rules of a list of tensors at work: one byte per row, the tensors' bytes one behind the other.
class GradRows {
 public:
  GradRows() = default;  // every element of every tensor, always
  GradRows(std::span<const TensorShape> tensors, double zeros);

  // Whether some row of some tensor has no gradient; whether the rows differ from step to step.
  [[nodiscard]] bool some_without() const { return bytes_ > 0; }
  [[nodiscard]] bool change() const { return change_; }

  // Bytes of all masks; the place of a tensor's: its mask's `touched` is an offset from `masks`.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] RowMask mask(std::size_t tensor, const std::byte* masks) const;
  // Which rows have a gradient at a step, 1 or 0.
  [[nodiscard]] std::vector<std::byte> masks_at(std::int64_t step) const;

  // The share of all elements that lie in rows of which `masks` says 1.
  [[nodiscard]] double share(std::span<const std::byte> masks) const;

 private:
  struct Tensor {
    RowRule rule;
    std::int64_t numel = 0, at = 0;         // elements; where its mask starts
    std::vector<std::int64_t> row_of_rank;  // of those alive
    std::vector<double> weight_up_to;       // of the ranks, where rows are drawn
  };
  std::vector<Tensor> tensors_;
  std::int64_t bytes_ = 0;
  bool change_ = false;
};

}  // namespace octavo::cli
