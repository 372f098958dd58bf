// Matmuls with weights in the layout of model files, [out, in], and the dtype in which they are computed.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/fake.h"
#include "train/nn/weight_matmul.h"

#include <ATen/autocast_mode.h>
#include <torch/types.h>

namespace octavo_train {

// Returns the dtype of activations: autocast's dtype if autocast is enabled, else the dtype of the weights.
inline torch::ScalarType compute_type(const torch::Tensor& weight) {
  const c10::DeviceType device = octavo::autocast_type(weight.device().type());
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : weight.scalar_type();
}

// Multiplies x [.., in] by the transposed weight and returns [.., out]. The weight has the shape [out, in],
// or [out, in, 1] if it belongs to a convolution with kernel size 1.
inline torch::Tensor weighted(const torch::Tensor& x, const torch::Tensor& weight) {
  return weight_matmul(x, (weight.dim() == 3 ? weight.squeeze(2) : weight).t());
}
inline torch::Tensor weighted(const torch::Tensor& x, const torch::Tensor& weight,
                              const torch::Tensor& bias) {
  const torch::Tensor out = weighted(x, weight);
  return out + bias.to(out.scalar_type());
}

}  // namespace octavo_train
