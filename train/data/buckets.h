// Batches of samples of similar length, each as large as a budget allows.
//
// An epoch of draws is cut into windows of at most so many draws, all of about the same size. The draws of a
// window are sorted by length, neighbours are put into batches, and the batches take a random order: so all
// draws of a window occur once in it, and a window never has draws of two epochs. Lengths are sorted after a
// random change of a few percent, so that a sample has other neighbours in each epoch. All randomness is a
// function of the order and the draw; a window is planned from nothing but them, the lengths and the budget.
//
// Invariant: a batch is within the budget, unless it is one sample that alone is beyond it. Whether such a
// sample is an error or is left out is the caller's decision: fits() and excess_text() tell it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/batches.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// What a sample takes of a budget.
struct ClipCost {
  double seconds = 0;      // its length: a batch is padded to its longest
  std::int64_t cells = 0;  // of the loss, which has no padding: frames x (tokens + 1)
};

// The most that a batch has; none: as much as the others allow. REQUIRES: at least one.
struct BatchBudget {
  std::optional<std::int64_t> rows;
  std::optional<double> seconds;      // rows x the longest
  std::optional<std::int64_t> cells;  // the sum over rows

  // Whether it has room for this sample alone.
  [[nodiscard]] bool fits(const ClipCost& cost) const;
  // "25.3 s, but a batch has 20 s (data.batch_seconds)". REQUIRES: !fits(cost).
  [[nodiscard]] std::string excess_text(const ClipCost& cost) const;
};

class BucketPlan : public Batches {
 public:
  // The cost of a sample, 0 … order.samples() - 1. Several threads call it at once, once for each draw of a
  // window; what it throws, rows_at() and draws() throw.
  using Cost = std::function<ClipCost(std::int64_t sample)>;

  // REQUIRES: window >= 1, draws at most.
  BucketPlan(Cost cost, const BatchBudget& budget, std::int64_t window);
  ~BucketPlan() override;

  // Any thread may call all of these. A window is planned once and the last few are kept.
  [[nodiscard]] std::int64_t rows_at(const Order& order, std::uint64_t position) const override;
  [[nodiscard]] Walk walk(const Order& order, std::uint64_t positions) const override;
  // The draws of positions first … first + rows - 1: what Task::read() reads.
  [[nodiscard]] std::vector<std::uint64_t> draws(const Order& order, std::uint64_t first,
                                                 std::int64_t rows) const;

  // All batches of the order's first epoch.
  struct Survey {
    std::int64_t batches = 0, least_rows = 0, most_rows = 0;
    double seconds = 0, padded_seconds = 0;
    // Of those with the most padded seconds, the first in the epoch.
    std::uint64_t largest = 0;  // a position
    std::int64_t largest_rows = 0;
    double largest_seconds = 0;  // padded
    // The share of the batches' seconds that is padding.
    [[nodiscard]] double padding() const { return padded_seconds > 0 ? 1 - seconds / padded_seconds : 0; }
  };
  [[nodiscard]] Survey survey(const Order& order) const;

  [[nodiscard]] const BatchBudget& budget() const { return budget_; }

 private:
  struct Bounds;  // of a window
  struct Window;
  struct Kept;
  [[nodiscard]] Bounds bounds(const Order& order, std::uint64_t position) const;
  [[nodiscard]] Window plan(const Order& order, const Bounds& bounds) const;
  [[nodiscard]] std::shared_ptr<const Window> window(const Order& order, std::uint64_t position) const;

  Cost cost_;
  BatchBudget budget_;
  std::uint64_t window_;
  std::unique_ptr<Kept> kept_;
};

}  // namespace octavo::train
