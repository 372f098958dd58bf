// An ordered list of named tensors: a model's parameters, a checkpoint's contents.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

[[nodiscard]] inline std::int64_t bytes_of(const NamedTensors& tensors) {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += static_cast<std::int64_t>(tensor.nbytes());
  return total;
}

}  // namespace octavo_train
