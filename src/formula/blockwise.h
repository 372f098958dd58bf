// Computes the scale of a block, or of an element with rank-1 scales, from the bits of the largest magnitude:
// the value that is stored, and the factor that elements are multiplied by. The maximum is taken over bit
// patterns, so it does not depend on the order, and a NaN or infinity is the largest of all.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"
#include "lane/scalar.h"

namespace octavo::formula {

struct BlockScale {
  float scale;    // the stored scale
  float inverse;  // the factor of elements before they are encoded
  bool finite;    // false: the block contains a NaN or infinity, its scale is NaN and its codes are 0
};

inline constexpr float kSmallestScale = 0x1p-126F;  // makes the reciprocal finite

// `largest` is the code value of the maximum: 1 for maps, 448 or 57344 for fp8.
OCTAVO_HD inline BlockScale block_scale(std::uint32_t max_bits, float largest) {
  if (max_bits >= static_cast<std::uint32_t>(kInf32)) return {std::bit_cast<float>(kNan32), 0.0F, false};
  if (max_bits == 0) return {0.0F, 0.0F, true};
  const float wanted = std::bit_cast<float>(max_bits) / largest;
  const float scale = wanted > kSmallestScale ? wanted : kSmallestScale;
  return {scale, 1.0F / scale, true};
}

// A rank-1 scale is the smallest of an element's axis maxima, given here as bits. It is at least
// kSmallestScale unless it is zero.
OCTAVO_HD inline float rank1_scale(std::uint32_t smallest_bits) {
  constexpr auto kSmallest = std::bit_cast<std::uint32_t>(kSmallestScale);
  const bool raised = smallest_bits != 0 && smallest_bits < kSmallest;
  return std::bit_cast<float>(raised ? kSmallest : smallest_bits);
}

// Returns the factor of an element before it is encoded. It is zero if the scale is not finite. If the scale
// is zero, so is the element, and the factor is larger than all others. So the reciprocal falls as the scale
// rises, rounded or not, and the reciprocal of the smaller of two scales is the larger reciprocal.
template <class F>
OCTAVO_HD inline F rank1_inverse(F scale) {
  const F inverse = select(scale > F(0.0F), F(1.0F) / scale, F(0x1p127F));
  return select(bits(scale) < decltype(bits(scale))(kInf32), inverse, F(0.0F));
}

}  // namespace octavo::formula
