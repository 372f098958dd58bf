// Model parts that keep their initial values when the weights come from a model with another vocabulary. The
// other parts are loaded.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/named_tensors.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

struct RenamedTensor;

struct ReinitializedLayers {
  std::string what;                                    // "decoder and joint"
  std::vector<std::string> by_token;                   // tensors with a row for every token
  std::function<bool(const std::string& name)> holds;  // returns true if a tensor belongs to these parts
};

// If a tensor of `by_token` has another number of rows in the file, removes the parts from both lists and
// returns a line for the console that says so. Otherwise returns nullopt.
std::optional<std::string> drop_reinitialized(const ReinitializedLayers& fresh,
                                              std::vector<RenamedTensor>& stored, NamedTensors& model);

}  // namespace octavo_train
