// Determines the options of an algorithm in a run: the config's value, else the trainer's default, else the
// default in the algorithm's description. The options' keys are made from the descriptions (options.cc), so a
// new algorithm needs no change here.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"

#include <octavo/describe.h>
#include <octavo/layout.h>

#include <string>
#include <string_view>

namespace octavo_train {

struct Config;

// Returns the algorithm's option of that name; null if it has none.
const octavo::Option* find_option(octavo::Algorithm algorithm, std::string_view name);

// Returns the value of an option in this run. REQUIRES: an option of the algorithm.
double option_value(const TrainingSettings& training, octavo::Algorithm algorithm,
                    const octavo::Option& option);

// hyper_params() returns the option values for a step. group_config() returns the option switches, which
// determine the moments.
octavo::HyperParams hyper_params(const TrainingSettings& training, octavo::Algorithm algorithm);
octavo::GroupConfig group_config(const TrainingSettings& training, octavo::Algorithm algorithm);

// Checks and completes the options of the chosen algorithm. A key may be in a config only because
// optimizer_fallback needs it. If the trainer's default differs from the chosen algorithm's own default, the
// algorithm's default is used.
Status settle_options(Config& config);

// Returns a value as YAML: true or false for a flag.
std::string option_text(const octavo::Option& option, double value);

}  // namespace octavo_train
