// Code that several algorithms share: the two kinds of weight decay and the numbers derived once per step.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

#include <cstdint>

namespace octavo::formula {

// Computes beta^t by square and multiply in IEEE double. The bits are equal on any host or device, unlike
// those of pow.
OCTAVO_HD inline double power(double beta, std::int64_t t) {
  double result = 1.0;
  for (double base = beta; t > 0; t >>= 1, base *= base) {
    if ((t & 1) != 0) result *= base;
  }
  return result;
}

// The constants that every algorithm gets besides its own.
struct Common {
  float factor = 1.0F;  // factor of the gradient, negative when maximizing
  float decay = 0.0F;   // coupled: added to the gradient times the parameter
  float keep = 1.0F;    // decoupled: the parameter's factor, 1 - lr * weight_decay
  bool coupled = false;
};

// Returns the gradient after scaling and coupled decay. A switch is a branch: 0 * p would turn an infinite p
// into NaN.
template <class F>
OCTAVO_HD inline F gradient(const Common& c, F raw, F p) {
  const F g = raw * F(c.factor);
  return c.coupled ? fma(F(c.decay), p, g) : g;
}

}  // namespace octavo::formula
