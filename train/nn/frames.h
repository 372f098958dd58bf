// How many frames the encoder makes of those of the features. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::train {

inline constexpr std::int64_t kSubsampling = 8;
// Frames, or bands, that remain: each stage halves and rounds up.
constexpr std::int64_t subsampled(std::int64_t count) { return (count + kSubsampling - 1) / kSubsampling; }

}  // namespace octavo::train
