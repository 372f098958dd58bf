// How large matrices of FP8 matmuls may be.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::fp8 {

inline constexpr std::int64_t kMostSide = std::int64_t{1} << 24;      // of a matmul
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 48;  // of a matrix with its groups
inline constexpr std::int64_t kMostGroups = 65535;

}  // namespace octavo::fp8
