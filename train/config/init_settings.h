// The settings for initial weights that are read from a file instead of drawn at random:
// `training.init_from`, `init_rename` and `init_strict`. train/checkpoint/initial_weights.h applies them to a
// model.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// Maps a pattern of names in the file to names in the model. `*` matches any text, including dots. Each `*`
// in `to` is replaced by the text that the `*` at the same position of `from` matches.
struct Rename {
  std::string from;
  std::string to;
  friend bool operator==(const Rename&, const Rename&) = default;
};

struct InitSettings {
  std::optional<std::string> from = {};  // a run's folder, a checkpoint's, or a safetensors file
  std::vector<Rename> rename = {};       // the first rule that matches a name is used
  bool strict = true;                    // missing and extra weights are errors
};

// Returns the name that a rule gives to `name`; nullopt if the rule does not match the complete name. If
// several matches are possible, each `*` matches as little as possible, the leftmost `*` first.
std::optional<std::string> renamed(const Rename& rule, const std::string& name);

}  // namespace octavo_train
