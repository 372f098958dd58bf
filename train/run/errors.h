// Turns exceptions into errors of a run; an error about a full device says what would help.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/run/run.h"
#include "train/run/training_state.h"

#include <c10/util/Exception.h>

namespace octavo_train {

// Returns the error for an exception of LibTorch. `evaluating`: an evaluation failed, not a step.
Status explain(const RunConfig& config, const Services& services, const TrainingState& state,
               const c10::Error& error, bool evaluating);

}  // namespace octavo_train
