// Maps draws to samples. Draws are counted over the complete run. The order is a function of the draw's
// number and has no other state, so a run resumes at any draw, and every machine and any number of threads
// compute the same order.
//
// Draws start, start + 1, … go through `samples` samples in a random order, each once per epoch, and every
// epoch has its own order. When the number of samples changes, in the next stage or because a run was resumed
// with another max_samples, a new Order begins with start = the number of draws so far. So a checkpoint
// stores samples() and start(). A resumed run continues with them if the number of samples is the same;
// otherwise it begins a new Order in this way.
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

}  // namespace octavo_train
