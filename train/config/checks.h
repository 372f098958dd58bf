// Rules between keys, checked once all values are known.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

#include <string>
#include <string_view>

namespace octavo::train {

// Resolves keys that belong together (max_steps and num_train_epochs), then refuses contradictions and what
// is not built in yet. Errors name both places.
Status settle_and_check(Config& config);

// `run.yaml:7:3: training.min_lr: got 1, but training.learning_rate is 0.001 (default); …`: for rules of
// tasks too. REQUIRES: paths of keys.
std::string clash(const Config& config, std::string_view path, std::string_view other, std::string_view fix);

// The part of it that depends on the algorithm: its options (option_checks.cc).
Status settle_options(Config& config);

}  // namespace octavo::train
