// The learning rate of each step.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <cstdint>

namespace octavo_train {

// Returns the learning rate of a step, from 1 to `steps`. It rises linearly to learning_rate over
// warmup_steps, then follows the scheduler's curve, which would reach min_lr one step after the last.
// REQUIRES: 1 <= step.
double learning_rate(const TrainingSettings& training, std::int64_t step, std::int64_t steps);

}  // namespace octavo_train
