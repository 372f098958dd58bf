// The scale of a block: from the bits of its largest magnitude to what is stored and what elements are
// multiplied by. The maximum is taken over bit patterns: independent of order, and a NaN or infinity is the
// largest of all.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"
#include "lane/scalar.h"

namespace octavo::formula {

struct BlockScale {
  float scale;    // what is stored
  float inverse;  // what elements are multiplied by before they are encoded
  bool finite;    // false: the block holds a NaN or infinity, its scale is NaN and its codes are 0
};

inline constexpr float kSmallestScale = 0x1p-126F;  // so that the reciprocal is finite

// `largest` is the code value that the maximum gets: 1 for maps, 448 or 57344 for fp8.
OCTAVO_HD inline BlockScale block_scale(std::uint32_t max_bits, float largest) {
  if (max_bits >= static_cast<std::uint32_t>(kInf32)) return {std::bit_cast<float>(kNan32), 0.0F, false};
  if (max_bits == 0) return {0.0F, 0.0F, true};
  const float wanted = std::bit_cast<float>(max_bits) / largest;
  const float scale = wanted > kSmallestScale ? wanted : kSmallestScale;
  return {scale, 1.0F / scale, true};
}

}  // namespace octavo::formula
