// What stands between the products of a layer: residual sums, LayerNorm, SiLU, each with its dropout. Inside
// in fp32; results are in the activations' dtype, whatever the dtype of the norm's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <utility>

namespace octavo::train {

// LayerNorm over the last dimension.
torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                         double eps);

// s = x + scale * drop(y), and the LayerNorm of s as it is stored.
std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& y, double scale,
                                                 const torch::Tensor& weight, const torch::Tensor& bias,
                                                 double eps, const Drop& drop);

// drop(SiLU(x)).
torch::Tensor silu_dropout(const torch::Tensor& x, const Drop& drop);

}  // namespace octavo::train
