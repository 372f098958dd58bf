// The state that training changes: the task's model, the optimizer with its states, the loss scale, the
// scales of FP8 and the counters. A checkpoint has exactly these: components and counters
// (train/checkpoint/checkpoint.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/device/memory.h"
#include "train/distributed/process_group.h"
#include "train/nn/named_tensors.h"
#include "train/optim/fp8.h"
#include "train/optim/gradients.h"
#include "train/optim/optimizer.h"
#include "train/optim/param_groups.h"
#include "train/optim/precision.h"
#include "train/optim/shards.h"
#include "train/task.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

class TrainingState {
 public:
  // Objects that exist before the optimizer is made.
  struct Parts {
    OpenTask task;
    TaskModel model;  // built by the task
    ParameterGroups groups;
    std::unique_ptr<ShardedWeights> shards;  // ZeRO's; null: every rank has all of the optimizer's states
    RunState counters;                       // of a run that begins
  };
  // The process group outlives it. Throws c10::Error if the device has no memory left.
  TrainingState(const TrainingSettings& training, const Fp8Choice& fp8, const torch::Device& device,
                ProcessGroup& process_group, Parts parts);
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // Returns the contents of a checkpoint, after pending updates of the weights. All ranks call it; rank 0
  // gets complete tensors.
  [[nodiscard]] SavedState save() const;
  // Loads a checkpoint into the state, counters included, and returns its counters as they were saved. Counts
  // that describe this start of the run keep their values: the ranks, their batches per step and the first
  // step. On an error, which says what differs, nothing has changed. `before` may change what is loaded.
  Result<RunState> load(const std::string& checkpoint, const BeforeLoad& before);
  // Memory by owner, without activations.
  [[nodiscard]] MemoryByOwner memory() const;

  std::unique_ptr<Task> task;
  const TaskData data;
  TaskModel model;
  const NamedTensors parameters, buffers;
  const ParameterGroups groups;
  std::unique_ptr<ShardedWeights> shards;
  std::unique_ptr<StepOptimizer> optimizer;
  LossScaler scaler;
  std::unique_ptr<Fp8> fp8;  // null: matmuls without FP8
  std::unique_ptr<Gradients> gradients;
  RunState counters;

 private:
  std::vector<std::unique_ptr<Checkpointable>> components_;
};

}  // namespace octavo_train
