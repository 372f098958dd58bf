// The values of all codes, for matmuls on the CPU.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/fp8.h"

#include <octavo/fp8.h>

#include <array>

namespace octavo::fp8 {

inline const std::array<float, 256>& values(Element element) {
  static constexpr auto kE4M3 = codecs::E4M3::values<Moment::first>();
  static constexpr auto kE5M2 = codecs::E5M2::values<Moment::first>();
  return element == Element::e4m3 ? kE4M3 : kE5M2;
}

}  // namespace octavo::fp8
