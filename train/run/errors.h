// What an error of LibTorch means for a run: its message, or the one about a full device.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/run/run.h"

#include <c10/util/Exception.h>
#include <octavo/status.h>

#include <exception>

namespace octavo::train {

// `evaluating`: it was not a step that failed.
Status explain(const Run& run, const c10::Error& error, bool evaluating);

// What else the run's parts threw: an Error has a code of its own.
Status status_of(const std::exception& error);

}  // namespace octavo::train
