// A checkpoint's optimizer states and weights turned into what a run with other settings would have saved:
// states of another format, bf16 weights with another master, fp32 weights for bf16 ones, Octavo's states for
// plain LibTorch's, and the reverse. Values go through fp32 by the core's codecs, one tensor at a time on the
// CPU. What has the right kind already keeps its bits.
//
// The states of another algorithm are not converted: its moments mean something else.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/named_tensors.h"
#include "train/optim/optimizer.h"
#include "train/optim/param_groups.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace octavo::train {

// What a checkpoint holds, as StepOptimizer::save() gave it, beside the weights. All on the CPU.
struct SavedRun {
  NamedTensors weights;
  NamedTensors states;
  nlohmann::ordered_json& numbers;
};

// Changes `saved` so that a run with this plan and these groups can load it. Returns what was changed, a line
// for each kind of change, for the console and the log. On an error `saved` may be changed in part.
Result<std::vector<std::string>> convert_states(const OptimizerPlan& plan, const TrainingSettings& training,
                                                const ParameterGroups& groups, SavedRun& saved);

}  // namespace octavo::train
