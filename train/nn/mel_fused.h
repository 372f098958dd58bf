// Computes mel_features() with CUDA kernels (train/nn/cuda/mel.h). This header does not need CUDA.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/mel.h"

namespace octavo_train {

// kDitherUse distinguishes the dither noise from other noise of the same seed. kLeastDeviation is added to
// each standard deviation, so that no division is by zero.
inline constexpr std::uint64_t kDitherUse = 0x4469746865722121;
inline constexpr double kLeastDeviation = 1e-5;

// Returns true if the kernels support these arguments.
bool mel_is_fusible(const torch::Tensor& audio, std::int64_t frames, const MelTables& tables,
                    const MelOptions& options);

// REQUIRES: mel_is_fusible, and arguments that mel_features() has checked.
torch::Tensor mel_features_fused(const torch::Tensor& audio, const torch::Tensor& lengths,
                                 std::int64_t frames, const MelTables& tables, const MelOptions& options,
                                 const DropoutKey& pass);

}  // namespace octavo_train
