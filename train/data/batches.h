// Divides the positions of a run into batches.
//
// A run consumes positions 0, 1, 2, … in order, and its state is the next position. A position stands for a
// draw of the order (order.h): for the draw of the same number or, if a task groups samples of similar
// length, for another draw of the same window (length_buckets.h). A batch is a range of positions that begins
// at p, and its length is a function of p. So a run can resume at any batch, and every machine computes the
// same batches.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/order.h"

#include <cstdint>

namespace octavo_train {

class Batches {
 public:
  Batches() = default;
  virtual ~Batches() = default;
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // Returns the number of positions from this one to the end of its batch, at least 1. Any thread may call it
  // repeatedly.
  // REQUIRES: position >= order.start().
  [[nodiscard]] virtual std::int64_t rows_at(const Order& order, std::uint64_t position) const = 0;

  struct BatchCount {
    std::int64_t batches = 0;
    std::uint64_t end = 0;  // the position after the last one
  };
  // Counts the batches that contain the first `positions` positions of the order. The last batch may extend
  // beyond them.
  [[nodiscard]] virtual BatchCount count_batches(const Order& order, std::uint64_t positions) const {
    const std::uint64_t end = order.start() + positions;
    BatchCount out{0, order.start()};
    for (; out.end < end; ++out.batches) out.end += static_cast<std::uint64_t>(rows_at(order, out.end));
    return out;
  }
};

// Batches of one size, the default for tasks that do not define their own batches.
class EqualBatches : public Batches {
 public:
  explicit EqualBatches(std::int64_t rows) : rows_(rows) {}  // REQUIRES: rows >= 1
  [[nodiscard]] std::int64_t rows_at(const Order& /*order*/, std::uint64_t /*position*/) const override {
    return rows_;
  }
  [[nodiscard]] BatchCount count_batches(const Order& order, std::uint64_t positions) const override {
    const auto rows = static_cast<std::uint64_t>(rows_);
    const std::uint64_t batches = positions / rows + (positions % rows != 0 ? 1 : 0);
    return {static_cast<std::int64_t>(batches), order.start() + batches * rows};
  }

 private:
  std::int64_t rows_;
};

}  // namespace octavo_train
