// Predicts before the first step what a run needs on a GPU or on the CPU. The data is opened, because its
// largest batch determines the memory. The model runs two steps and an evaluation batch on tensors without
// memory (trace_device.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/predict/prediction.h"
#include "train/task.h"

#include <octavo/plan.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

struct PredictionRequest {
  octavo::plan::Gpu gpu;
  bool cpu = false;  // the run is on the CPU: only memory is predicted, not time, and `gpu` is not used
  std::int64_t num_gpus = 1;
  std::int64_t gpus_per_host = 8;
  double network = 50e9;      // bytes/s of one GPU to other hosts, in each direction
  double launch_seconds = 0;  // host time per kernel, from measure_launch(); 0: a fast host is assumed
};

// Predicts a run with these settings. Returns the errors of a run (bad data, settings that are not a valid
// model or optimizer, a batch that cannot be divided among ranks), and StatusCode::unsupported for an
// operator that tensors without memory cannot run, with its name.
Result<Prediction> predict(const Settings& settings, const PredictionRequest& request);
// Does the same with a task whose data is open. Builds a new model, which the task has afterwards: not for
// the task of a run.
Result<Prediction> predict(const Settings& settings, const OpenTask& task, const PredictionRequest& request);

// Loads the run's config with other settings, given as `key=value` words.
using LoadWith = std::function<Result<Config>(const std::vector<std::string>& words)>;
// Predicts the run with these settings. The data of `task` is opened again only if settings of `data` differ.
// Null: it is always opened.
Result<Prediction> predict_with(const LoadWith& load, const std::vector<std::string>& words,
                                const PredictionRequest& request, const OpenTask* task = nullptr);

}  // namespace octavo_train
