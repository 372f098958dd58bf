// Checks the rules that involve several keys, after all values are set, and computes the number of
// micro-batches of a step. A step has per_device_train_batch_size x gradient_accumulation_steps x ranks
// samples, which global_batch_size may fix.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace octavo_train {

// Resolves keys that depend on each other (max_steps and num_train_epochs), then rejects contradictions.
// Errors name the places of both keys.
Status settle_and_check(Config& config);

// Returns the error that the values of two keys contradict each other, such as `run.yaml:7:3:
// training.min_lr: got 1, but training.learning_rate is 0.001 (default); …`. Tasks use it for their rules
// too. REQUIRES: `path` and `other` are paths of keys.
Status clash_error(const Config& config, std::string_view path, std::string_view other, std::string_view fix);

// Returns the number of micro-batches per rank and step. It is computed from global_batch_size if that is
// given; a given gradient_accumulation_steps must then agree. The error lists what is possible with this
// number of ranks. REQUIRES: settings returned by parse() or load(), ranks >= 1.
Result<std::int64_t> accumulation_for(const TrainingSettings& training, std::int64_t ranks);

// Returns, for an error, what would make a step of `global` samples: other batch sizes and numbers of
// micro-batches for these ranks, or other numbers of ranks. `per_device` is the batch size that did not fit.
// REQUIRES: all of them >= 1.
std::string possible_batch_splits(std::int64_t global, std::int64_t per_device, std::int64_t ranks);

}  // namespace octavo_train
