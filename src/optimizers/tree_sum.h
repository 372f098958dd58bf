// The tree over the chunks of a norm, on the host. cuda/norm/fixed_order_reduce.cuh has the same on the
// device.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/trust_ratio.h"

#include <span>

namespace octavo {

// Overwrites the values.
inline double tree_sum(std::span<double> values) {
  return values.empty() ? 0.0 : formula::tree_sum(values.data(), static_cast<std::int64_t>(values.size()));
}

}  // namespace octavo
