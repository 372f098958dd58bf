// The learning rate of each step.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <cstdint>

namespace octavo::train {

// Of step 1 to `steps`: a straight rise over warmup_steps, which ends at learning_rate, then the scheduler's
// course, which would reach min_lr one step after the last. REQUIRES: 1 <= step.
double learning_rate(const TrainingSettings& training, std::int64_t step, std::int64_t steps);

}  // namespace octavo::train
