// Tensors by name, in an order: a model's parameters, a checkpoint's contents.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

namespace octavo::train {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

}  // namespace octavo::train
