// The tree over the chunks of a norm, on the host: pairs of neighbours, level by level. Its order depends
// only on their number. cuda/norm.cu has the same on the device.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

namespace octavo {

// Overwrites the values.
inline double tree_sum(std::span<double> values) {
  for (std::size_t size = values.size(); size > 1; size = (size + 1) / 2) {
    for (std::size_t i = 0; i < size / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    if ((size & 1) != 0) values[size / 2] = values[size - 1];
  }
  return values.empty() ? 0.0 : values[0];
}

}  // namespace octavo
