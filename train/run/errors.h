// Turns exceptions into errors of a run; an error about a full device says what would help.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/run/run.h"

#include <c10/util/Exception.h>

#include <exception>

namespace octavo_train {

// Returns the error for an exception of LibTorch. `evaluating`: an evaluation failed, not a step.
Status explain(const Run& run, const c10::Error& error, bool evaluating);

// Returns the error for any exception, with the code of an octavo::Error.
Status status_of(const std::exception& error);

}  // namespace octavo_train
