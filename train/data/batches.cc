// See batches.h.
// SPDX-License-Identifier: MIT
#include "train/data/batches.h"

namespace octavo_train {

Batches::Walk Batches::walk(const Order& order, std::uint64_t positions) const {
  const std::uint64_t end = order.start() + positions;
  Walk out{0, order.start()};
  for (; out.end < end; ++out.batches) out.end += static_cast<std::uint64_t>(rows_at(order, out.end));
  return out;
}

Batches::Walk EqualBatches::walk(const Order& order, std::uint64_t positions) const {
  const auto rows = static_cast<std::uint64_t>(rows_);
  const std::uint64_t batches = positions / rows + (positions % rows != 0 ? 1 : 0);
  return {static_cast<std::int64_t>(batches), order.start() + batches * rows};
}

}  // namespace octavo_train
