// Rules between keys, checked once all values are known.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

namespace octavo::train {

// Resolves keys that belong together (max_steps and num_train_epochs), then refuses contradictions and what
// is not built in yet. Errors name both places.
Status settle_and_check(Config& config);

// The part of it that depends on the algorithm: its options (option_checks.cc).
Status settle_options(Config& config);

}  // namespace octavo::train
