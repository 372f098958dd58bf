// Activations that a cast to FP8 can include, from operations of a lane only: a library's exponential differs
// between machines, this one does not.
//
// silu(x) = x * sigmoid(x). The tanh form of gelu is x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715
// x^3), because (1 + tanh(u)) / 2 = sigmoid(2u). NaN and plus infinity stay as they are; minus infinity gives
// NaN, because it is x * 0.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

namespace octavo::formula {

// Computes e^x to about two units in the last place: the omitted terms of the series are below 0.35^8 / 8!,
// or 2^-27. REQUIRES: |x| <= 87, where the result is a normal number.
template <class F>
OCTAVO_HD inline F exponential_f32(F x) {
  // Adding 1.5 * 2^23 leaves the nearest integer in the last bits of the sum.
  const F shifted = fma(x, F(0x1.715476p0F), F(0x1.8p23F));
  const F n = shifted - F(0x1.8p23F);
  // ln 2 is split in two parts. The first is so short that its product with n is exact.
  const F rest = fma(n, F(-0x1.7F7D1Cp-20F), fma(n, F(-0x1.62E4p-1F), x));
  F sum = F(1.0F / 5040);
  sum = fma(sum, rest, F(1.0F / 720));
  sum = fma(sum, rest, F(1.0F / 120));
  sum = fma(sum, rest, F(1.0F / 24));
  sum = fma(sum, rest, F(1.0F / 6));
  sum = fma(sum, rest, F(0.5F));
  sum = fma(sum, rest, F(1.0F));
  sum = fma(sum, rest, F(1.0F));
  return from_bits(bits(sum) + shl<23>(bits(shifted)));  // adds the integer to the exponent
}

// Computes x * sigmoid(z), where z has x's sign. Below e^-87 a sigmoid counts as zero.
template <class F>
OCTAVO_HD inline F gated(F x, F z) {
  const F inside = max(min(z, F(87.0F)), F(-87.0F));
  const F value = x / (F(1.0F) + exponential_f32(F(0.0F) - inside));
  return select(z < F(-87.0F), x * F(0.0F), value);
}

template <class F>
OCTAVO_HD inline F relu(F x) {
  return select(x < F(0.0F), F(0.0F), x);
}

template <class F>
OCTAVO_HD inline F silu(F x) {
  return gated(x, x);
}

template <class F>
OCTAVO_HD inline F gelu(F x) {
  constexpr float kTwice = 0x1.988454p0F;  // 2 * sqrt(2 / pi)
  const F cubed = x * x * x;
  return gated(x, F(kTwice) * fma(F(0.044715F), cubed, x));
}

}  // namespace octavo::formula
