// Computes the number of micro-batches (`passes`) per optimizer step. A step has per_device_train_batch_size
// x gradient_accumulation_steps x ranks samples, which global_batch_size may fix.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"

#include <cstdint>
#include <string>

namespace octavo_train {

// Returns the number of micro-batches per rank and step. It is computed from global_batch_size if that is
// given; a given gradient_accumulation_steps must then agree. The error lists what is possible with this
// number of ranks. REQUIRES: settings returned by parse() or load(), ranks >= 1.
Result<std::int64_t> accumulation_for(const TrainingSettings& training, std::int64_t ranks);

// Returns, for an error, what would make a step of `global` samples: other batch sizes and numbers of
// micro-batches for these ranks, or other numbers of ranks. `per_device` is the batch size that did not fit.
// REQUIRES: all of them >= 1.
std::string possible_batch_splits(std::int64_t global, std::int64_t per_device, std::int64_t ranks);

}  // namespace octavo_train
