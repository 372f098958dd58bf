// The gradients of a run, as its settings and its ranks ask for.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/distributed/world.h"
#include "train/optim/gradients.h"
#include "train/optim/param_groups.h"
#include "train/optim/sharded_weights.h"

#include <cstdint>
#include <memory>

namespace octavo::train {

// Without a group: those of this process. `passes`: of a step on a rank, at most. `weights`: the rank's
// pieces (ZeRO); null: every rank steps all parameters. `optimizer`: takes
// gradients where the settings ask for it; null: nobody does. World and optimizer outlive the result.
std::unique_ptr<Gradients> make_gradients(World& world, const ParameterGroups& groups,
                                          const TrainingSettings& training, std::int64_t passes,
                                          const ShardedWeights* weights, StepOptimizer* optimizer = nullptr);

}  // namespace octavo::train
