// The limits of the sizes of FP8 matmuls.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::fp8 {

inline constexpr std::int64_t kMostSide = std::int64_t{1} << 24;  // a side of a matmul
inline constexpr std::int64_t kMostElements = std::int64_t{1}
                                              << 48;  // the elements of a matrix with its groups
inline constexpr std::int64_t kMostGroups = 65535;

}  // namespace octavo::fp8
