// Computes scales of FP8 matmuls from the maxima of their operands. If a maximum is zero, infinite or too
// small, the scale is the one that Transformer Engine defines. A maximum is never NaN or negative.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"

#include <limits>

namespace octavo::formula {

OCTAVO_HD inline bool is_finite(float x) { return x - x == 0.0F; }

// Replaces the scale of a maximum that is so small that its scale is not a finite float.
OCTAVO_HD inline float finite_scale(float scale) {
  constexpr float kMost = std::numeric_limits<float>::max();
  return scale > kMost ? kMost : scale;
}

// Computes a scale from the maximum of a history. `reach` is the value that this maximum is mapped to: the
// largest number times 2^-margin.
OCTAVO_HD inline float delayed_scale(float amax, float reach, float before) {
  return finite_scale(is_finite(amax) && amax > 0.0F ? reach / amax : before);
}

// Computes a scale from the maximum of the elements themselves. A power of two adds no error to the product
// and is rounded down, so that no value exceeds the largest number.
OCTAVO_HD inline float current_scale(float amax, float largest, bool power_of_two) {
  if (!is_finite(amax) || !(amax > 0.0F)) return 1.0F;
  const float scale = finite_scale(largest / amax);
  return power_of_two ? from_bits(bits(scalar::F32(scale)) & scalar::I32(kInf32)).v : scale;
}

// Returns the factor of codes. A cast saturates infinities, so a NaN here makes them visible again.
OCTAVO_HD inline float inverse_scale(float scale, float amax) {
  return is_finite(amax) ? 1.0F / scale : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace octavo::formula
