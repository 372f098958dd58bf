// Which window of a text a draw gives; data/order.h has the order.
//
// From the second epoch on the windows are shifted by a random part of a block, the same for all of an epoch,
// so that the text is cut elsewhere. No window leaves the first `samples` blocks (and their last target): the
// last one moves back as far as needed.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/order.h"
#include "train/tasks/text/text.h"

#include <cstdint>

namespace octavo::train {

class Sampler {
 public:
  // REQUIRES: order.samples() <= sample_count(range, block_size, -1).
  Sampler(TextRange range, std::int64_t block_size, Order order);

  // Of the window's first byte in the corpus. REQUIRES: draw >= order().start().
  [[nodiscard]] std::int64_t offset(std::uint64_t draw) const;

  // The window's block_size + 1 bytes. REQUIRES: the same, and as many bytes in `out`.
  void read(std::uint64_t draw, std::span<std::uint8_t> out) const;

  [[nodiscard]] const Order& order() const { return order_; }
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }

 private:
  TextRange range_;  // ends where the last of the samples does
  std::int64_t block_size_;
  Order order_;
};

}  // namespace octavo::train
