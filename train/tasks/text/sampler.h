// Maps draws to windows of a text. train/data/order.h has the order.
//
// From the second epoch on, all windows of an epoch are shifted by the same random part of a block, so that
// the text is cut at other positions. No window extends beyond the first `samples` blocks (and their last
// target): the last window moves back as far as needed.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/order.h"
#include "train/tasks/text/text.h"

#include <cstdint>

namespace octavo_train {

class Sampler {
 public:
  // REQUIRES: order.samples() <= sample_count(range, block_size, -1).
  Sampler(TextRange range, std::int64_t block_size, Order order);

  // Returns the offset of the window's first byte in the corpus. REQUIRES: draw >= order().start().
  [[nodiscard]] std::int64_t offset(std::uint64_t draw) const;

  // Reads the window's block_size + 1 bytes. REQUIRES: draw >= order().start(), and out.size() is block_size
  // + 1.
  void read(std::uint64_t draw, std::span<std::uint8_t> out) const;

  [[nodiscard]] const Order& order() const { return order_; }
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }

 private:
  TextRange range_;  // ends at the end of the last sample
  std::int64_t block_size_;
  Order order_;
};

}  // namespace octavo_train
