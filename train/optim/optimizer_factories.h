// Creates the two kinds of StepOptimizer, and checks saved states for them. Internal to train/optim and
// tests.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/optim/optimizer.h"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>

namespace octavo_train {

std::unique_ptr<StepOptimizer> make_native_optimizer(const OptimizerName& name,
                                                     const TrainingSettings& training, ParameterGroups groups,
                                                     const ShardedWeights* shards = nullptr);
std::unique_ptr<StepOptimizer> make_plain_optimizer(const OptimizerName& name,
                                                    const TrainingSettings& training, ParameterGroups groups);

// Returns true if LibTorch has the algorithm with the same meaning.
bool plain_has(octavo::Algorithm algorithm);

// Returns an error if a parameter's saved state belongs to another algorithm, because its moments have
// another meaning. States saved by version 0.1 do not name their algorithm and are accepted.
Status check_algorithm(const nlohmann::ordered_json& state, const std::string& parameter,
                       octavo::Algorithm algorithm);

// Advice for messages about states of another kind; see convert_states.h.
inline constexpr const char* kConvertAdvice = "; to convert them: --resume convert_states=true";

// Finds a tensor of save() by its name, "<parameter>.<part>". Returns null if there is none.
inline const torch::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return &tensor;
  }
  return nullptr;
}

}  // namespace octavo_train
