// The options of an algorithm, as a run uses them: what the config gives, else the trainer's own default,
// else that of the algorithm's description. Their keys are made from the descriptions (options.cc), so a new
// algorithm has its keys without an edit here.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <octavo/describe.h>
#include <octavo/optimizer.h>

#include <string>
#include <string_view>

namespace octavo::train {

// The algorithm's option of that name; null where it has none.
const Option* find_option(Algorithm algorithm, std::string_view name);

// The trainer's default of a key, as YAML; "null" where each algorithm has its own.
std::string_view key_default(std::string_view option);
// What an option is where the config says nothing.
double option_default(Algorithm algorithm, const Option& option);
// What it is in this run. REQUIRES: an option of the algorithm.
double option_value(const TrainingSettings& training, Algorithm algorithm, const Option& option);

// Everything that a step needs of them, and what fixes the moments.
HyperParams hyper_params(const TrainingSettings& training, Algorithm algorithm);
GroupConfig group_config(const TrainingSettings& training, Algorithm algorithm);

// "lr, beta1, beta2": the keys that the algorithm has.
std::string option_names(Algorithm algorithm);

// A value as YAML: true or false for a flag.
std::string option_text(const Option& option, double value);

}  // namespace octavo::train
