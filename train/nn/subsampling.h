// The convolutions with which FastConformer makes one frame of eight.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/frames.h"

#include <torch/types.h>

#include <array>
#include <cstdint>

namespace octavo::train {

struct SubsamplingWeights {
  struct Stage {
    torch::Tensor depthwise, depthwise_bias;  // [channels, 1, 3, 3], stride 2
    torch::Tensor pointwise, pointwise_bias;  // [channels, channels, 1, 1]
  };
  torch::Tensor first, first_bias;  // [channels, 1, 3, 3], stride 2
  std::array<Stage, 2> stages;
};

// A convolution with ReLU, then two pairs of convolutions with ReLU, each over frames and bands with padding
// 1: features [batch, T, bands] to [batch, subsampled(T), channels * subsampled(bands)] in their dtype.
// Before each convolution and at the end, frames at or beyond a row's length (int64 [batch], on the device,
// in frames of the features) are zeros; lengths shrink as the frames do.
torch::Tensor subsample(const torch::Tensor& features, const torch::Tensor& lengths,
                        const SubsamplingWeights& weights);

}  // namespace octavo::train
