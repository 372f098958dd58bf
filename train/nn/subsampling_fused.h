// Computes subsample() with CUDA kernels. A build without the kernels uses this code only for predictions
// (train/nn/fused.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/subsampling.h"

namespace octavo_train {

// Returns false if the features need a gradient: the kernels do not compute it.
bool subsampling_is_fusible(const at::Tensor& features, const SubsamplingWeights& weights);
// REQUIRES: subsampling_is_fusible, and lengths as subsample() checks them.
at::Tensor subsample_fused(const at::Tensor& features, const at::Tensor& lengths,
                           const SubsamplingWeights& weights);

}  // namespace octavo_train
