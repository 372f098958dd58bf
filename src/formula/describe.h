// Defines how a formula file describes itself: a family of algorithms that share rules of update, and the
// members of a rule. The terms are those of octavo/describe.h.
//
// A family has
//   using Rules = TypeList<…>;                  one rule for each set of moments
//   static constexpr AlgorithmInfo kNames[];    one or more names for them
//   static std::string conflict(const HyperParams&)   optional: options that are not allowed together, or ""
// A rule has
//   kSwitches        the family's switching options that are on in it, as bits
//   kSlots, kState   its moments; kMoments is moments_of(kState)
//   Consts           the constants of all elements of a step, at most 64 bytes, derived from Common
//   derive           computes Consts once per step, in double, rounded once
//   copy_fixed       copies the constants that no scalar on a device can change from the host's Consts
//   update           the new parameter from the gradient, the parameter and the moments, which it updates
//   kDivides         true if update divides or takes roots: a GPU's fast lane is then exact only within a
//   range quotients        what is divided, by the constants (lane/exact.h), from which the range follows
//   kNumerator       the slot of the numerator; or, if it is not a moment,
//   numerator        the numerator from the gradient and the new moments: it grows with their magnitudes
//   kDividesGradient the numerator is the gradient, and a second moment contains its square
//   kRare            no fast path on a GPU, so that it compiles quickly
//   kPasses = 2      the rule has a trust ratio (formula/trust_ratio.h): Consts has the tensor's `ratio`,
//   unscaled_update  is squared and summed together with the weights, from copies of the moments, and
//   ratio            computes the tensor's ratio from both sums
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/moments.h"

#include <octavo/describe.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <string>

namespace octavo {

template <class... T>
struct TypeList {
  static constexpr std::size_t kSize = sizeof...(T);
};

namespace formula {

constexpr std::array<Moment, kMaxSlots> moments_of(const std::array<Slot, kMaxSlots>& slots) {
  std::array<Moment, kMaxSlots> out{};
  for (std::size_t i = 0; i < slots.size(); ++i) out[i] = slots[i].moment;
  return out;
}

// Options that several families have, with their positions in HyperParams.
constexpr Option rate(double value) { return {"lr", value, Range::non_negative, offsetof(HyperParams, lr)}; }
constexpr Option beta1(double value) {
  return {"beta1", value, Range::fraction, offsetof(HyperParams, beta1), "betas"};
}
constexpr Option beta2(double value) {
  return {"beta2", value, Range::fraction, offsetof(HyperParams, beta2), "betas"};
}
constexpr Option epsilon(double value) {
  return {"eps", value, Range::non_negative, offsetof(HyperParams, eps)};
}
constexpr Option weight_decay(double value) {
  return {"weight_decay", value, Range::non_negative, offsetof(HyperParams, weight_decay)};
}
// AlgorithmInfo::excluded_formats has this bit for a format that an algorithm does not support.
constexpr std::uint32_t format_bit(StateFormat format) { return 1U << static_cast<std::uint32_t>(format); }

// Formats a number for a message, with a decimal point in every locale.
inline std::string shown(double value) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 9);
  return {text.data(), end.ptr};
}

// Returns the position of an algorithm's own hyper-parameter.
constexpr std::int32_t own_place(int index) {
  return static_cast<std::int32_t>(offsetof(HyperParams, own)) + 8 * index;
}

}  // namespace formula
}  // namespace octavo
