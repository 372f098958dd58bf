// The two kinds of StepOptimizer. Only optimizer.cc and tests include this.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/optim/optimizer.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>

namespace octavo::train {

std::unique_ptr<StepOptimizer> make_native_optimizer(const OptimizerName& name,
                                                     const TrainingSettings& training, ParameterGroups groups,
                                                     const ShardedWeights* shards = nullptr);
std::unique_ptr<StepOptimizer> make_plain_optimizer(const OptimizerName& name,
                                                    const TrainingSettings& training, ParameterGroups groups);

// Whether LibTorch has the algorithm, with the same meaning.
bool plain_has(Algorithm algorithm);

// An error where a parameter's saved state is another algorithm's, whose moments mean something else. States
// saved by version 0.1 do not say whose they are.
Status check_algorithm(const nlohmann::ordered_json& state, const std::string& parameter,
                       Algorithm algorithm);

// What helps where states are of another kind: see convert_states.h.
inline constexpr const char* kConvertAdvice = "; to convert them: --resume convert_states=true";

// Of the tensors that save() gave, those of one parameter: "<parameter>.<part>".
inline const torch::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return &tensor;
  }
  return nullptr;
}

}  // namespace octavo::train
