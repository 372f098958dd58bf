// A plan from real steps, for models that tensors without memory cannot run: two small batches where the GPU
// is, and the run's own on the line through them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"
#include "train/predict/advise.h"
#include "train/predict/plan.h"

#include <octavo/status.h>

namespace octavo::train {

// A few steps with a quarter and with half of the run's rows, on the device of the run; fewer where memory is
// too small for them. Nothing is written.
// Of the request only the GPU's memory counts, of one GPU. Handles signals as train() does. Errors: those of
// a run, more than one GPU, and a signal.
Result<Plan> measure_plan(const LoadWith& load, const PlanRequest& request, Console& console);

}  // namespace octavo::train
