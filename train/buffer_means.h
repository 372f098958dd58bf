// Buffers that passes change, such as the statistics of a BatchNorm, over the ranks of a run: each rank's
// passes have changed its own, and after the step all have the mean of them (of integers, such as counts, the
// largest). So all ranks have the same model.
//
// The mean is that of the changes, so a buffer that nothing changes keeps its bits. A tensor's version does
// not tell: BatchNorm writes its statistics without one.
// SPDX-License-Identifier: MIT
#pragma once

#include "tensors.h"
#include "train/world/world.h"

#include <vector>

namespace octavo::train {

class BufferMeans {
 public:
  // The tensors are the model's own. Without other ranks it does nothing.
  BufferMeans(World& world, const NamedTensors& buffers);

  // Before the passes of a step.
  void begin();
  // After them, on all ranks.
  void share();

 private:
  struct Kind {  // of one dtype: they are reduced together
    std::vector<torch::Tensor> buffers;
    torch::Tensor before;  // all of them, flat; integers have none
  };
  World& world_;
  std::vector<Kind> kinds_;  // in the same order on all ranks
};

}  // namespace octavo::train
