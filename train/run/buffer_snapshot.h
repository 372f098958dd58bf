// Forward passes change a model's buffers, such as the statistics of BatchNorm. If the optimizer skips a step
// because gradients are not finite, a snapshot restores the buffers, so nothing of a bad batch stays.
//
// The forward passes of each rank change its own buffers. After a step all ranks have the mean of the
// changes, or of integers, such as counts, the largest value: all ranks have the same model. A buffer that no
// rank changes keeps its bits. Tensor versions cannot show a change, because BatchNorm writes its statistics
// without one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <vector>

namespace octavo_train {

class BufferSnapshot {
 public:
  // The snapshot refers to the model's own tensors.
  explicit BufferSnapshot(const NamedTensors& buffers);

  // Copies the values. Called before the first micro-batch of a step.
  void save();
  // Averages the changes since save(). Called after the last micro-batch, on all ranks. It does nothing in a
  // single process. REQUIRES: save().
  void average_across_ranks(ProcessGroup& process_group);
  // Restores the saved values if `skipped`, one number on the buffers' device, is not 0. The host does not
  // wait.
  void restore_if(const torch::Tensor& skipped);
  // Restores the saved values. REQUIRES: save().
  void restore();

 private:
  struct Kind {  // buffers of one dtype and device, which are copied together
    std::vector<torch::Tensor> buffers;
    torch::Tensor kept;  // all of them, flat
  };
  static void give(Kind& kind, const torch::Tensor& values);

  std::vector<Kind> kinds_;
};

}  // namespace octavo_train
