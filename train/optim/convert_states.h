// Converts a checkpoint's optimizer states and weights to those that a run with other settings would have
// saved: states to another format, bf16 weights to other master weights, bf16 weights to fp32. Values are
// converted through fp32 by the core's codecs, one tensor at a time on the CPU. Tensors that already have the
// right kind stay bit-identical.
//
// Earlier versions used LibTorch's own optimizers on GPUs that they had no kernels for.
// The states of such checkpoints have torch's names and the parameters' shapes; they are converted too.
//
// The states of another algorithm are not converted, because its moments have another meaning.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"
#include "train/optim/param_groups.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace octavo_train {

// The contents of a checkpoint: the weights and the results of StepOptimizer::save(). All tensors are on the
// CPU.
struct SavedRun {
  NamedTensors weights;
  NamedTensors states;
  nlohmann::ordered_json& scalars;
};

// Changes `saved` so that a run with these settings and groups can load it. Returns a line for each kind of
// change, for the console and the log. On an error `saved` may be partly changed.
Result<std::vector<std::string>> convert_states(const TrainingSettings& training,
                                                const ParameterGroups& groups, SavedRun& saved);

}  // namespace octavo_train
