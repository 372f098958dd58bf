// Predicts memory and time from real steps, for models that cannot run on tensors without memory: two small
// batches are measured on the local GPU, and the run's batch is extrapolated from them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/console/console.h"
#include "train/predict/advise.h"
#include "train/predict/prediction.h"

namespace octavo_train {

// Runs a few steps with a quarter and with half of the run's rows on the run's device, or fewer rows if its
// memory is too small. It writes nothing. Only the memory of one GPU is used of the request. Handles signals
// as train() does. Errors: those of a run, more than one GPU, and a signal.
Result<Prediction> measure_plan(const LoadWith& load, const PredictionRequest& request, Console& console);

}  // namespace octavo_train
