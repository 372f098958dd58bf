// The passes of a step where a run goes on with another number of ranks.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>

namespace octavo::train {

// The passes of each rank. A run that goes on from a checkpoint with the same batch settings keeps that
// checkpoint's batches per step, whatever the number of ranks; where the ranks cannot divide them, the error
// has what is possible. Other batch settings are taken as they are: continue_settings() compares them.
// `checkpoint`: empty for a run that begins.
Result<std::int64_t> passes_of_ranks(const Settings& given, std::int64_t ranks,
                                     const std::string& checkpoint);

}  // namespace octavo::train
