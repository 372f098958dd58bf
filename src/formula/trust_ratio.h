// The sums of squares of a tensor's weights and updates, from which a rule with two passes computes its trust
// ratio. Squares of floats are exact in double. The tree of sums is the same for every backend: neighbouring
// elements, neighbouring pairs, and so on up to tiles of kSumTile elements; then neighbouring tiles, level by
// level. Missing elements at an end count as zero, which changes no bit, because a sum of squares is never
// -0. This definition must never be tuned.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

#include <octavo/describe.h>

#include <bit>
#include <cstdint>

namespace octavo::formula {

inline constexpr std::int64_t kSumTile = 512;

struct Sums {
  double weight, update;
};
OCTAVO_HD inline Sums operator+(const Sums& a, const Sums& b) {
  return {a.weight + b.weight, a.update + b.update};
}

// Sums at least one value by the tree, in place. (Code of one instruction set passes its lane: the linker
// keeps one copy of a template, and that copy must not be one that another machine cannot run.)
template <class L = void, class T>
OCTAVO_HD inline T tree_sum(T* values, std::int64_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (std::int64_t i = 0; i < count / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    if (count % 2 != 0) values[count / 2] = values[count - 1];
  }
  return values[0];
}

// True if a rule has a trust ratio: kPasses is 2, Consts has a `ratio` of the tensor, `unscaled_update` is
// squared together with the weights (it may advance the moments, which are copies), and `ratio` computes the
// ratio from the sums.
template <class Rule>
inline constexpr bool kHasTrustRatio = requires {
  Rule::kPasses;
};

// Reads a boolean option of an algorithm. Any bit but the sign means true, so a bool, an integer and a double
// are read in the same way.
OCTAVO_HD inline bool own_flag(const HyperParams& h, int index) {
  return (std::bit_cast<std::uint64_t>(h.own[index]) << 1) != 0;
}

// Returns the factor that clips an update to `most` times the weights, as bitsandbytes does; 0 does not clip.
OCTAVO_HD inline double clip_ratio(double weight, double update, double most) {
  return most > 0.0 && update > most * weight ? most * weight / update : 1.0;
}

}  // namespace octavo::formula
