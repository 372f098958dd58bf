// The two kinds of StepOptimizer. Only optimizer.cc and tests include this.
// SPDX-License-Identifier: MIT
#pragma once

#include "optimizer.h"

namespace octavo::train {

std::unique_ptr<StepOptimizer> make_native_optimizer(const OptimizerName& name,
                                                     const TrainingSettings& training,
                                                     ParameterGroups groups);
std::unique_ptr<StepOptimizer> make_plain_optimizer(const OptimizerName& name,
                                                    const TrainingSettings& training, ParameterGroups groups);

// Whether LibTorch has the algorithm, with the same meaning.
bool plain_has(Algorithm algorithm);

// Of the tensors that save() gave, those of one parameter: "<parameter>.<part>".
inline const torch::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return &tensor;
  }
  return nullptr;
}

}  // namespace octavo::train
