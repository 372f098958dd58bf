// The dropout of a function with CUDA kernels, kept from its forward pass to its backward pass.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/drop_call.h"
#include "train/nn/dropout.h"

#include <torch/torch.h>

namespace octavo_train {

// Owns the memory that `call` points to. Without samples nothing is dropped.
struct KernelMask : ::torch::CustomClassHolder {
  KernelMask() = default;
  KernelMask(const at::Tensor& x, const Drop& drop) {
    if (!check_dropout(x, drop.probability, drop.training, drop.pass)) return;
    samples = drop.pass.samples.contiguous();
    call = {samples.const_data_ptr<std::int64_t>(), drop.probability, drop.pass.seed, drop.pass.step,
            drop.layer};
  }
  [[nodiscard]] bool drops() const { return samples.defined(); }

  at::Tensor samples;
  cuda::DropoutArgs call;
};

}  // namespace octavo_train
