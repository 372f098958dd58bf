// Computes the sums of squares of a tile by the tree of formula/trust_ratio.h. (The functions are templates
// over the lane: each instruction set compiles its own copy, and the compiler vectorizes it.)
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/trust_ratio.h"

namespace octavo::cpu {

template <class L>
inline double square_sum(const float* values) {
  constexpr std::int64_t kPairs = formula::kSumTile / 2;
  double sums[kPairs];
  for (std::int64_t i = 0; i < kPairs; ++i) {
    const double even = values[2 * i];
    const double odd = values[2 * i + 1];
    sums[i] = even * even + odd * odd;
  }
  return formula::tree_sum<L>(sums, kPairs);
}

// Sums `count` elements, which are padded to the next full tile. Each tile's sum goes to `out` in order.
template <class L>
inline formula::Sums* sum_tiles(float* weights, float* updates, std::int64_t count, formula::Sums* out) {
  for (std::int64_t i = count; i % formula::kSumTile != 0; ++i) weights[i] = updates[i] = 0.0F;
  for (std::int64_t at = 0; at < count; at += formula::kSumTile)
    *out++ = {square_sum<L>(weights + at), square_sum<L>(updates + at)};
  return out;
}

}  // namespace octavo::cpu
