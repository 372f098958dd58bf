// The functions of train/nn/residual.h with CUDA kernels. A build without the kernels uses this code only for
// predictions (train/nn/fused.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

#include <utility>

namespace octavo_train {

bool norm_is_fusible(const at::Tensor& x, const at::Tensor& weight);
// REQUIRES for both: norm_is_fusible. y has the shape and type of x.
at::Tensor layer_norm_fused(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            double eps);
std::pair<at::Tensor, at::Tensor> add_norm_fused(const at::Tensor& x, const at::Tensor& y, double scale,
                                                 const at::Tensor& weight, const at::Tensor& bias, double eps,
                                                 const Drop& drop);
// REQUIRES: fusible(x).
at::Tensor silu_dropout_fused(const at::Tensor& x, const Drop& drop);

}  // namespace octavo_train
