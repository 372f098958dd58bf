// Computes relative_attention() with CUDA kernels. A build without the kernels uses this code only for
// predictions (train/nn/fused.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

namespace octavo_train {

bool attention_is_fusible(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
// REQUIRES: attention_is_fusible, and the shapes that relative_attention checks.
at::Tensor relative_attention_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const at::Tensor& positions, const at::Tensor& bias_u,
                                    const at::Tensor& bias_v, const at::Tensor& lengths, const Drop& drop);

}  // namespace octavo_train
