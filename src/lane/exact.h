// Defines where the fast lane of a GPU (lane/cuda.cuh) gives the bits of the scalar lane. An algorithm
// describes what it divides, and elements are checked where they are computed.
//
// Within the bounds below, a root is exact from zero on. A quotient is exact unless its numerator is below
// 2^-102 or the quotient is below 2^-126. Such a quotient is too small to change a result of `least_result`
// or more by half a unit in its last place, so it may be wrong. A numerator of +0 gives +0. So results are
// right if each numerator is +0 or each result has that size. Other elements are checked one by one.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

#include <limits>

namespace octavo {

// The upper bound of numerators (first moments) and radicands (second moments).
inline constexpr float kLargeFirst = 0x1p60F, kLargeSecond = 0x1p44F;
inline constexpr float kLargeFactor = 0x1p20F;
// With a smaller eps, radicands must be at least kSmallSecond and numerators at least kSmallFirst. Then every
// quotient is exact, however it is used.
inline constexpr float kSmallEps = 0x1p-56F, kSmallFirst = 0x1p-60F, kSmallSecond = 0x1p-100F;

// The division of a rule: factor * (numerator / (root * root_scale + eps)) is added to the previous value.
struct Quotients {
  float factor;
  float root_scale;
  float eps;
  bool bounded = true;  // the numerator is a moment, or bounded by one
};

OCTAVO_HD inline bool in_range(const Quotients& q) {
  const float factor = q.factor < 0.0F ? -q.factor : q.factor;
  return q.bounded && factor <= kLargeFactor && q.root_scale >= 1.0F && q.root_scale <= kLargeFactor &&
         q.eps >= 0.0F && q.eps <= kLargeFactor;
}

// A quotient that may be wrong is below 2^-102 / eps, and the fast lane's is at most twice that. A change of
// 2^-26 of a result does not change it. A result may have been rounded to bf16 before it is checked.
OCTAVO_HD inline float least_result(const Quotients& q) {
  if (!(q.eps >= kSmallEps)) return std::numeric_limits<float>::infinity();
  const float factor = q.factor < 0.0F ? -q.factor : q.factor;
  const float least = factor * 0x1p-73F / q.eps;
  return least > 0x1p-70F ? least : 0x1p-70F;
}

}  // namespace octavo
