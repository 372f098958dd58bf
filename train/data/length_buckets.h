// Forms batches of samples of similar length, each as large as a budget allows.
//
// An epoch of draws is cut into windows of at most `window` draws, all of about the same size. The draws of a
// window are sorted by length, neighbours form batches, and the batches are put into a random order. So every
// draw of a window occurs once in it, and a window never mixes draws of two epochs. Lengths are changed
// randomly by a few percent before sorting, so that a sample has other neighbours in each epoch. All
// randomness is a function of the order and the draw. A window is computed only from these, the lengths and
// the budget.
//
// Invariant: a batch is within the budget, unless it is a single sample that exceeds it. The caller decides
// whether such a sample is an error or is skipped; fits() and excess_text() detect and describe it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/order.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// The cost of a sample in a budget.
struct ClipCost {
  double seconds = 0;      // its length; a batch is padded to its longest sample
  std::int64_t cells = 0;  // cells of the loss, which has no padding: frames x (tokens + 1)
};

// The limits of a batch. nullopt: no limit of this kind. REQUIRES: at least one is set.
struct BatchBudget {
  std::optional<std::int64_t> rows;
  std::optional<double> seconds;      // rows x the longest sample
  std::optional<std::int64_t> cells;  // sum over the rows

  // Returns true if this sample alone is within the budget.
  [[nodiscard]] bool fits(const ClipCost& cost) const;
  // Returns a text such as "25.3 s, but a batch has 20 s (data.batch_seconds)". REQUIRES: !fits(cost).
  [[nodiscard]] std::string excess_text(const ClipCost& cost) const;
};

class LengthBuckets : public Batches {
 public:
  // Returns the cost of a sample, 0 … order.samples() - 1. Several threads call it concurrently, once for
  // each draw of a window. rows_at() and draws() rethrow its exceptions.
  using Cost = std::function<ClipCost(std::int64_t sample)>;

  // `window` is the maximum number of draws per window. REQUIRES: window >= 1.
  LengthBuckets(Cost cost, const BatchBudget& budget, std::int64_t window);
  ~LengthBuckets() override;

  // Any thread may call all of these. A window is computed once, and the last few are cached.
  [[nodiscard]] std::int64_t rows_at(const Order& order, std::uint64_t position) const override;
  [[nodiscard]] BatchCount count_batches(const Order& order, std::uint64_t positions) const override;
  // Returns the draws of positions first … first + rows - 1, which Task::read() reads.
  [[nodiscard]] std::vector<std::uint64_t> draws(const Order& order, std::uint64_t first,
                                                 std::int64_t rows) const;

  // Statistics of all batches of the order's first epoch.
  struct Survey {
    std::int64_t batches = 0, least_rows = 0, most_rows = 0;
    double seconds = 0, padded_seconds = 0;
    // The batch with the most padded seconds; if several are equal, the first in the epoch.
    std::uint64_t largest = 0;  // the batch's position
    std::int64_t largest_rows = 0;
    double largest_seconds = 0;  // including padding
    // Returns the fraction of the batches' seconds that is padding.
    [[nodiscard]] double padding() const { return padded_seconds > 0 ? 1 - seconds / padded_seconds : 0; }
  };
  [[nodiscard]] Survey survey(const Order& order) const;

  [[nodiscard]] const BatchBudget& budget() const { return budget_; }

 private:
  struct Bounds;  // a window's draws
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

}  // namespace octavo_train
