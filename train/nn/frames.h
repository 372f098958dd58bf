// The number of encoder frames for a number of feature frames. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train {

inline constexpr std::int64_t kSubsampling = 8;
// Returns the number of frames, or bands, after subsampling: each stage halves the number and rounds up.
constexpr std::int64_t subsampled(std::int64_t count) { return (count + kSubsampling - 1) / kSubsampling; }

}  // namespace octavo_train
