// A model's buffers, such as the statistics of BatchNorm, are changed by forward passes. Where the optimizer
// skips a step, because gradients are not finite, what the step's passes did to them is undone: nothing of a
// bad batch stays.
// SPDX-License-Identifier: MIT
#pragma once

#include "tensors.h"

#include <torch/types.h>

#include <vector>

namespace octavo::train {

class BufferKeeper {
 public:
  // The tensors are the model's own.
  explicit BufferKeeper(const NamedTensors& buffers);

  // Remembers their values. Before the passes of a step.
  void remember();
  // Gives them back where `skipped`, one number on their device, is not 0. The host does not wait for it.
  void undo_if(const torch::Tensor& skipped);
  // Gives them back. REQUIRES: remember().
  void undo();

 private:
  struct Kind {  // of one dtype: they are copied together
    std::vector<torch::Tensor> buffers;
    torch::Tensor kept;  // all of them, flat
  };
  static void give(Kind& kind, const torch::Tensor& values);

  std::vector<Kind> kinds_;
};

}  // namespace octavo::train
