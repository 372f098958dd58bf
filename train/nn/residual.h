// The operations between the matmuls of a layer: residual sums, LayerNorm and SiLU, each with its dropout.
// They compute in fp32; results have the activations' dtype, whatever the dtype of the norm's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <utility>

namespace octavo_train {

// Returns the LayerNorm of x over its last dimension.
torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                         double eps);

// Returns s = x + scale * drop(y), and the LayerNorm of s as it is stored (rounded to its dtype).
std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& y, double scale,
                                                 const torch::Tensor& weight, const torch::Tensor& bias,
                                                 double eps, const Drop& drop);

// Returns drop(SiLU(x)).
torch::Tensor silu_dropout(const torch::Tensor& x, const Drop& drop);

}  // namespace octavo_train
