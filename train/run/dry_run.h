// Runs a few real steps to find the memory and the time that a run needs. A dry run has the largest batches
// first, and one evaluation. A prediction from steps measures two small batches instead, for models that
// cannot run on tensors without memory. Neither writes anything or reads a checkpoint.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/distributed/rank_failure.h"
#include "train/predict/predict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

struct DryRun {
  int signal = 0;                       // the signal that stopped it; 0: it was completed
  std::vector<std::string> lines = {};  // the summary
  Prediction measured = {};             // memory and time of the step with the largest batches
};

// Errors are those of a run: bad data or settings, weights of init_from that do not fit, exhausted memory.
// Handles signals as train() does. REQUIRES: steps >= 2, because the memory of the second step is measured;
// one run per process at a time. `evaluates`: false omits the evaluation. `failure`: as for train().
Result<DryRun> dry_run(const Config& config, std::int64_t steps, Console& console, bool evaluates = true,
                       std::optional<RankFailure>* failure = nullptr);

// Predicts a run from dry runs with a quarter and with half of its rows on the run's device, or with fewer
// rows if its memory is too small: the run's batch is extrapolated from them. Of the request only the GPU's
// memory is used. Errors: those of dry_run(), more than one GPU, and a signal.
Result<Prediction> predict_from_steps(const LoadWith& load, const PredictionRequest& request,
                                      Console& console);

}  // namespace octavo_train
