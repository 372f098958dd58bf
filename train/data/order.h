// Maps draws to samples, and divides the positions of a run into batches.
//
// Draws are counted over the complete run. The order is a function of the draw's
// number and has no other state, so a run resumes at any draw, and every machine and any number of threads
// compute the same order.
//
// Draws start, start + 1, … go through `samples` samples in a random order, each once per epoch, and every
// epoch has its own order. When the number of samples changes, in the next stage or because a run was resumed
// with another max_samples, a new Order begins with start = the number of draws so far. So a checkpoint
// stores samples() and start(). A resumed run continues with them if the number of samples is the same;
// otherwise it begins a new Order in this way.
//
// A run consumes positions 0, 1, 2, … in order, and its state is the next position. A position stands for a
// draw of the order: for the draw of the same number or, if a task groups samples of similar
// length, for another draw of the same window (length_buckets.h). A batch is a range of positions that begins
// at p, and its length is a function of p. So a run can resume at any batch, and every machine computes the
// same batches.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train {

// A random permutation of 0 … size - 1 that is computed, without a table.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);                 // REQUIRES: 1 <= size <= 2^62
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const;  // REQUIRES: index < size

 private:
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

class Order {
 public:
  Order(std::int64_t samples, std::uint64_t seed, std::uint64_t start);  // REQUIRES: samples >= 1

  // REQUIRES for all of these: draw >= start().
  [[nodiscard]] std::int64_t sample(std::uint64_t draw) const;   // 0 … samples() - 1
  [[nodiscard]] std::uint64_t epoch(std::uint64_t draw) const;   // since start()
  [[nodiscard]] std::uint64_t noise(std::uint64_t epoch) const;  // random, one per epoch

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::uint64_t start() const { return start_; }
  friend bool operator==(const Order&, const Order&) = default;

 private:
  std::int64_t samples_;
  std::uint64_t key_;
  std::uint64_t start_;
};

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
