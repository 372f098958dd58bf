// Where a run's first weights come from instead of random numbers: `training.init_from`, `init_rename` and
// `init_strict`; train/checkpoint/initial_weights.h holds them against a model.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// A pattern of names in the file and what they are called in the model. `*` takes any text, dots too; each
// `*` of `to` is what the one at the same place of `from` took.
struct Rename {
  std::string from;
  std::string to;
  friend bool operator==(const Rename&, const Rename&) = default;
};

struct InitSettings {
  std::optional<std::string> from = {};  // a run's folder, a checkpoint's, or a safetensors file
  std::vector<Rename> rename = {};       // the first that matches a name counts
  bool strict = true;                    // what is missing or left over is an error
};

// What a rule makes of a name; none where it does not match the whole of it. Where several ways fit, each `*`
// takes as little as it can, the first ones first.
std::optional<std::string> renamed(const Rename& rule, const std::string& name);

}  // namespace octavo::train
