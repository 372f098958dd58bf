// The convolution module of a Conformer, between its two pointwise products.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

namespace octavo::train {

// Parameters and buffers of a BatchNorm over channels, all fp32 [channels] but the count, which is int64 and
// 0-d.
struct BatchNorm {
  torch::Tensor weight, bias;
  torch::Tensor running_mean, running_var, num_batches_tracked;
  double momentum = 0.1, eps = 1e-5;
  bool frozen = false;  // takes the running statistics also in training, and they stay
};

// SiLU(BatchNorm(depthwise(mask(GLU(z))))) of z [batch, T, 2 channels]: [batch, T, channels] in z's dtype.
// GLU is the first half of the channels times the sigmoid of the second. The mask makes zeros of positions at
// or beyond a row's length (int64 [batch], on the device). The kernel `weight` [channels, 1, width] has an
// odd width and is centred. BatchNorm's statistics are over all batch * T positions, those beyond the lengths
// too; the variance of a single position is zero. `training` updates the running ones once.
torch::Tensor conv_module(const torch::Tensor& z, const torch::Tensor& lengths, const torch::Tensor& weight,
                          BatchNorm& norm, bool training);

}  // namespace octavo::train
