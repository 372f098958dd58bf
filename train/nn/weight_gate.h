// Who tells that weights are about to be used.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/nn/module.h>

#include <functional>

namespace octavo::train {

// Called with a part of the model before a pass uses its parameters: their update may still be under way.
using WeightGate = std::function<void(const torch::nn::Module&)>;

}  // namespace octavo::train
