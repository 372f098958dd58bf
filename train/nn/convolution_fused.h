// Computes conv_module() with CUDA kernels. A build without the kernels uses this code only for predictions
// (train/nn/fused.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/convolution.h"

namespace octavo_train {

bool conv_is_fusible(const at::Tensor& z, const at::Tensor& weight, const BatchNorm& norm);
// REQUIRES: conv_is_fusible, and the shapes that conv_module checks.
at::Tensor conv_module_fused(const at::Tensor& z, const at::Tensor& lengths, const at::Tensor& weight,
                             const BatchNorm& norm, bool frozen);

}  // namespace octavo_train
