// FastConformer's subsampling convolutions, which reduce eight feature frames to one frame.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/frames.h"

#include <torch/types.h>

#include <array>
#include <cstdint>

namespace octavo_train {

struct SubsamplingWeights {
  struct Stage {
    torch::Tensor depthwise, depthwise_bias;  // [channels, 1, 3, 3], stride 2
    torch::Tensor pointwise, pointwise_bias;  // [channels, channels, 1, 1]
  };
  torch::Tensor first, first_bias;  // [channels, 1, 3, 3], stride 2
  std::array<Stage, 2> stages;
};

// Applies a convolution with ReLU, then two pairs of convolutions with ReLU. Those of size 3 x 3 run over
// frames and bands with padding 1. Returns [batch, subsampled(T), channels * subsampled(bands)] in the dtype
// of `features` [batch, T, bands]. Before each convolution and at the end, frames at or beyond a row's length
// (`lengths`, int64 [batch], on the device, in frames of the features) are set to zero; each stride of 2
// halves the lengths too.
torch::Tensor subsample(const torch::Tensor& features, const torch::Tensor& lengths,
                        const SubsamplingWeights& weights);

}  // namespace octavo_train
