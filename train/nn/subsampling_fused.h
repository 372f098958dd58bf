// subsample by CUDA kernels; where a build has none, for plans alone (nn/fused.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/subsampling.h"

namespace octavo::train {

// Features that need a gradient have none here.
bool subsampling_is_fusible(const at::Tensor& features, const SubsamplingWeights& weights);
// REQUIRES: subsampling_is_fusible, and lengths as subsample() checks them.
at::Tensor subsample_fused(const at::Tensor& features, const at::Tensor& lengths,
                           const SubsamplingWeights& weights);

}  // namespace octavo::train
