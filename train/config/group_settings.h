// The settings of individual parameters: `training.groups` and `training.no_decay`. Patterns are shell
// patterns (`*` and `?` also match dots) and must match a parameter's full name. train/optim/param_groups.h
// applies them to a model.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// One entry of `groups`. A field that is not set has the run's value.
struct GroupSettings {
  std::vector<std::string> params;  // patterns of names
  std::optional<double> weight_decay;
  std::optional<double> learning_rate;  // the peak rate; the scheduler scales all rates in proportion
  std::optional<octavo::StateFormat> state;
  std::optional<bool> freeze;  // true: the parameters are not trained
  friend bool operator==(const GroupSettings&, const GroupSettings&) = default;
};

// Selects the parameters without weight decay.
struct NoDecay {
  enum class Kind { automatic, none, patterns };
  Kind kind = Kind::none;  // automatic: parameters with fewer than two dimensions (biases and norms)
  std::vector<std::string> patterns;
  friend bool operator==(const NoDecay&, const NoDecay&) = default;
};

}  // namespace octavo_train
