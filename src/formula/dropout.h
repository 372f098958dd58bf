// Dropout by counters. An element is dropped depending only on (seed, step, sample, layer, element), so masks
// are the same on any device and for any layout or split of a batch, and the backward pass recomputes its
// mask instead of storing it.
//
// The bits are those of stochastic rounding (formula/stochastic_round.h), with separate keys. One counter has
// 32 bits, sixteen for each of two elements that are kDropoutPair apart. So vectors of neighbours have
// consecutive counters, and code that computes both elements computes one hash.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"
#include "formula/stochastic_round.h"

#include <cmath>
#include <cstdint>

namespace octavo::formula {

inline constexpr std::int64_t kDropoutPair = 256;

// The probability of dropping in units of 2^-16, and the factor of kept elements. The factor belongs to the
// rounded probability, so that the mean of the results is that of the elements.
struct Dropout {
  std::int32_t threshold;
  float scale;
};

// REQUIRES: 0 <= probability < 1.
inline Dropout make_dropout(double probability) {
  double threshold = std::floor(probability * 65536.0 + 0.5);
  if (threshold > 65535.0) threshold = 65535.0;
  return {static_cast<std::int32_t>(threshold), static_cast<float>(65536.0 / (65536.0 - threshold))};
}

// Returns the key that all samples and layers of a step share. It differs from the key of stochastic
// rounding.
OCTAVO_HD inline std::uint64_t dropout_base(std::uint64_t seed, std::uint64_t step) {
  return mix64(round_base(seed, step) ^ 0x64726F706F757421U);
}
OCTAVO_HD inline RoundKey dropout_key(std::uint64_t base, std::int64_t sample, std::uint32_t layer) {
  return round_key(base, static_cast<std::uint64_t>(sample), layer);
}

// The location of the sixteen bits of a sample's element. Counters of a half never cross a multiple of 2^32.
struct DropoutPlace {
  std::uint64_t counter;
  bool high;  // true: the upper half of the counter's bits
};
OCTAVO_HD inline DropoutPlace dropout_place(std::uint64_t element) {
  constexpr std::uint64_t kPair = kDropoutPair;
  return {element / (2 * kPair) * kPair + element % kPair, element / kPair % 2 != 0};
}

// Returns one half of a counter's bits.
template <class I>
OCTAVO_HD inline I dropout_half(I bits, bool high) {
  return high ? shr<16>(bits) : bits & I(0xFFFF);
}

// A dropped element is zero whatever its value. This is a selection, because 0 * inf is NaN.
template <class F, class I>
OCTAVO_HD inline F drop(F x, I half, I threshold, F scale) {
  return select(half < threshold, F(0.0F), x * scale);
}

}  // namespace octavo::formula
