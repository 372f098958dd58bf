// Buffers that passes change, such as the statistics of a BatchNorm, over the ranks of a run: each rank's
// passes have changed its own, and after the step all have the mean of them (of integers, such as counts, the
// largest). So all ranks have the same model.
// SPDX-License-Identifier: MIT
#pragma once

#include "tensors.h"
#include "train/world/world.h"

#include <cstdint>
#include <vector>

namespace octavo::train {

class BufferMeans {
 public:
  // The tensors are the model's own. Without other ranks it does nothing.
  BufferMeans(World& world, const NamedTensors& buffers);

  // Before the passes of a step.
  void begin();
  // After them, on all ranks: those that the passes of any rank have changed.
  void share();

 private:
  World& world_;
  std::vector<torch::Tensor> buffers_;  // none: there is nothing to share
  std::vector<std::int64_t> versions_;  // before the passes
};

}  // namespace octavo::train
