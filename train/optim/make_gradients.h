// Creates the Gradients object that a run's settings and ranks need.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/optim/gradients.h"
#include "train/optim/param_groups.h"
#include "train/optim/sharded_weights.h"

#include <cstdint>
#include <memory>

namespace octavo_train {

// Without a process group the result handles this process alone. `passes`: the largest number of
// micro-batches of a rank in a step. `weights`: the rank's pieces (ZeRO); null: every rank steps all
// parameters. `optimizer`: offloads gradients if the settings request it; null: gradients stay on the device.
// ProcessGroup and optimizer outlive the result.
std::unique_ptr<Gradients> make_gradients(ProcessGroup& world, const ParameterGroups& groups,
                                          const TrainingSettings& training, std::int64_t passes,
                                          const ShardedWeights* weights, StepOptimizer* optimizer = nullptr);

}  // namespace octavo_train
