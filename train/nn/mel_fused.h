// Features by CUDA kernels (nn/cuda/mel.h). The header has no CUDA.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/mel.h"

namespace octavo::train {

// What tells the noise of the dither from others of the same seed; and what a deviation is at least.
inline constexpr std::uint64_t kDitherUse = 0x4469746865722121;
inline constexpr double kLeastDeviation = 1e-5;

// Whether the kernels take it.
bool mel_is_fusible(const torch::Tensor& audio, std::int64_t frames, const MelTables& tables,
                    const MelOptions& options);

// REQUIRES: mel_is_fusible, and arguments that mel_features() has checked.
torch::Tensor mel_features_fused(const torch::Tensor& audio, const torch::Tensor& lengths,
                                 std::int64_t frames, const MelTables& tables, const MelOptions& options,
                                 const DropoutPass& pass);

}  // namespace octavo::train
