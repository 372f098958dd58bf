// A model's buffers, such as the statistics of BatchNorm, are changed by forward passes. Where the optimizer
// skips a step, because gradients are not finite, what the step's passes did to them is undone: nothing of a
// bad batch stays.
//
// The passes of each rank change its own. After a step all ranks have the mean of the changes, and of
// integers, such as counts, the largest: so all have the same model. A buffer that nothing changes keeps its
// bits. A tensor's version does not tell whether it was changed: BatchNorm writes its statistics without one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/world.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <vector>

namespace octavo::train {

class BufferKeeper {
 public:
  // The tensors are the model's own.
  explicit BufferKeeper(const NamedTensors& buffers);

  // Remembers their values. Before the passes of a step.
  void remember();
  // After the passes, on all ranks. Without other ranks it does nothing. REQUIRES: remember().
  void share(World& world);
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
