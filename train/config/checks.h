// Checks the rules that involve several keys, after all values are set.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

#include <string>
#include <string_view>

namespace octavo_train {

// Resolves keys that depend on each other (max_steps and num_train_epochs), then rejects contradictions and
// features that are not built in. Errors name the places of both keys.
Status settle_and_check(Config& config);

// Returns an error message such as `run.yaml:7:3: training.min_lr: got 1, but training.learning_rate is 0.001
// (default); …`. Tasks use it for their rules too. REQUIRES: `path` and `other` are paths of keys.
std::string clash(const Config& config, std::string_view path, std::string_view other, std::string_view fix);

}  // namespace octavo_train
