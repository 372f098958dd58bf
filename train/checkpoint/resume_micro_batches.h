// Computes the micro-batches per step of a run that resumes with another number of ranks.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"

#include <cstdint>
#include <string>

namespace octavo_train {

// Returns the number of micro-batches per step of each rank. A run that resumes with the checkpoint's batch
// settings keeps the checkpoint's batches per step, for any number of ranks. If the ranks cannot divide them,
// the error lists the possible values. Changed batch settings are used as given: continue_settings() compares
// them. `checkpoint` is empty for a new run.
Result<std::int64_t> micro_batches_per_rank(const Settings& given, std::int64_t ranks,
                                            const std::string& checkpoint);

}  // namespace octavo_train
