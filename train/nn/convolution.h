// The part of a Conformer's convolution module between its two pointwise convolutions.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

namespace octavo_train {

// The parameters and buffers of a BatchNorm over channels. All are fp32 [channels], except the count, which
// is int64 and 0-d.
struct BatchNorm {
  torch::Tensor weight, bias;
  torch::Tensor running_mean, running_var, num_batches_tracked;
  double momentum = 0.1, eps = 1e-5;
  bool frozen = false;  // training also uses the running statistics, and does not update them
};

// Returns SiLU(BatchNorm(depthwise(mask(GLU(z))))), [batch, T, channels] in z's dtype, for z [batch, T, 2
// channels]. GLU multiplies the first half of the channels by the sigmoid of the second half. The mask sets
// positions at or beyond a row's length (`lengths`, int64 [batch], on the device) to zero. The kernel
// `weight` [channels, 1, width] has an odd width and is centered. BatchNorm's statistics cover all batch * T
// positions, including those beyond the lengths; the variance of a single position is zero. `training`
// updates the running statistics once, unless the norm is frozen.
torch::Tensor conv_module(const torch::Tensor& z, const torch::Tensor& lengths, const torch::Tensor& weight,
                          BatchNorm& norm, bool training);

}  // namespace octavo_train
