// Products with weights as files have them, [out, in], and the dtype that they are computed in.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/fake.h"
#include "train/nn/project.h"

#include <ATen/autocast_mode.h>
#include <torch/types.h>

namespace octavo::train {

// What activations are in: autocast's dtype where it is on, else the weights'.
inline torch::ScalarType compute_type(const torch::Tensor& weight) {
  const c10::DeviceType device = autocast_type(weight.device().type());
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : weight.scalar_type();
}

// x [.., in] with weight [out, in] or, as a convolution over one position, [out, in, 1]: [.., out].
inline torch::Tensor weighted(const torch::Tensor& x, const torch::Tensor& weight) {
  return project(x, (weight.dim() == 3 ? weight.squeeze(2) : weight).t());
}
inline torch::Tensor weighted(const torch::Tensor& x, const torch::Tensor& weight,
                              const torch::Tensor& bias) {
  const torch::Tensor out = weighted(x, weight);
  return out + bias.to(out.scalar_type());
}

}  // namespace octavo::train
