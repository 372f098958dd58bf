// How the positions of a run are divided into batches.
//
// A run takes positions 0, 1, 2, … one after the other, and its state is the next one. A position stands for
// a draw of the order (order.h): for the draw of the same number, or, where a task puts samples of similar
// length together, for another draw of the same window (buckets.h). A batch is the positions from p on, and
// how many is a function of p: so a run resumes at any batch, and any machine knows which batch comes when.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/order.h"

#include <cstdint>

namespace octavo::train {

class Batches {
 public:
  Batches() = default;
  virtual ~Batches() = default;
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // Positions from this one to the end of its batch, 1 or more. Any thread may call it, again and again.
  // REQUIRES: position >= order.start().
  [[nodiscard]] virtual std::int64_t rows_at(const Order& order, std::uint64_t position) const = 0;

  struct Walk {
    std::int64_t batches = 0;
    std::uint64_t end = 0;  // the position after the last one
  };
  // The batches from the order's start on that have its first so many positions; the last one may have more.
  [[nodiscard]] virtual Walk walk(const Order& order, std::uint64_t positions) const;
};

// Batches of one size. It is a run's where its task has none of its own.
class EqualBatches : public Batches {
 public:
  explicit EqualBatches(std::int64_t rows) : rows_(rows) {}  // REQUIRES: rows >= 1
  [[nodiscard]] std::int64_t rows_at(const Order& /*order*/, std::uint64_t /*position*/) const override {
    return rows_;
  }
  [[nodiscard]] Walk walk(const Order& order, std::uint64_t positions) const override;

 private:
  std::int64_t rows_;
};

}  // namespace octavo::train
