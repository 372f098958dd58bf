// What a config says of single parameters: `training.groups` and `training.no_decay`. Patterns are as in a
// shell (`*` and `?` also take dots) and match a parameter's whole name; train/optim/param_groups.h holds
// them against a model.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// One entry of `groups`. What it does not say is as for the whole run.
struct GroupSettings {
  std::vector<std::string> params;  // patterns of names
  std::optional<double> weight_decay;
  std::optional<double> learning_rate;  // the highest; the scheduler changes all rates in proportion
  std::optional<StateFormat> state;
  std::optional<bool> freeze;  // true: the parameters stay as they are
  friend bool operator==(const GroupSettings&, const GroupSettings&) = default;
};

// Which parameters have no weight decay.
struct NoDecay {
  enum class Kind { automatic, none, patterns };
  Kind kind = Kind::none;  // automatic: those of fewer than two dimensions, biases and norms
  std::vector<std::string> patterns;
  friend bool operator==(const NoDecay&, const NoDecay&) = default;
};

}  // namespace octavo::train
