// Runs a few real steps to find the memory and the time that a run needs, with the largest batches first, and
// one evaluation. It writes nothing and reads no checkpoint.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/distributed/rank_failure.h"
#include "train/predict/prediction.h"

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

// Measures a step of the run, for PredictionRequest::measure: a dry run of a few steps without an evaluation.
// An error also if a signal stopped it.
Result<Prediction> measure_steps(const Config& config, Console& console);

}  // namespace octavo_train
