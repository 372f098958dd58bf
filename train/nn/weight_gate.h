// A callback that runs before weights are used.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/nn/module.h>

#include <functional>

namespace octavo_train {

// Called with a part of the model before a forward pass uses its parameters, because their update may still
// be running.
using WeightGate = std::function<void(const torch::nn::Module&)>;

}  // namespace octavo_train
