// Which passes make a step: per_device_train_batch_size x gradient_accumulation_steps x ranks samples, which
// global_batch_size may fix.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>

namespace octavo::train {

// The passes of each rank. Where global_batch_size is given, they follow from it, and passes that are given
// besides must agree. The error has what is possible with so many ranks. REQUIRES: settings that parse() or
// load() gave, ranks >= 1.
Result<std::int64_t> accumulation_for(const TrainingSettings& training, std::int64_t ranks);

// What would make a step of `global` samples: other passes for these ranks, or other ranks. `per_device` is
// what did not. REQUIRES: all of them >= 1.
std::string possible_passes(std::int64_t global, std::int64_t per_device, std::int64_t ranks);

}  // namespace octavo::train
