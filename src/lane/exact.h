// The range in which the fast lane of a GPU (lane/cuda.cuh) divides and takes roots exactly. An algorithm
// says with it which of its constants allow that lane; elements are checked where they are computed.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo {

// Where division and root are exact: |numerators| (first moments) and radicands (second moments). A
// denominator is then root * root_scale + eps, from 2^-50 to 2^61 with what `in_range` of an algorithm's
// constants allows.
inline constexpr float kSmallFirst = 0x1p-60F, kLargeFirst = 0x1p60F;
inline constexpr float kSmallSecond = 0x1p-100F, kLargeSecond = 0x1p80F;
inline constexpr float kLargeFactor = 0x1p20F;

}  // namespace octavo
