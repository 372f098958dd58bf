// Logs the settings and sizes of a run before its first step, on the console and in the log.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/initial_weights.h"
#include "train/run/run.h"
#include "train/run/training_state.h"

#include <optional>

namespace octavo_train {

// `initial_weights`: where the first weights were read from; none: nowhere.
void log_run_start(const RunConfig& config, const Services& services, const TrainingState& state,
                   const std::optional<InitialWeights>& initial_weights);

// Logs the FP8 matmuls that were chosen since the last call. All ranks have the choices of rank 0.
Status log_fp8_choices(const Services& services, TrainingState& state);

}  // namespace octavo_train
