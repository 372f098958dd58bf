// Predicts before the first step what a run needs on a GPU or on the CPU. The data is opened, because its
// largest batch determines the memory. There are two methods. A trace runs two steps and an evaluation batch
// on tensors without memory (trace_device.h). The other method measures real steps with small batches, and
// extrapolates, for models that cannot be traced.
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

  // `trace_or_steps` measures steps if the model cannot be traced and `gpu` is the one GPU of the run, in
  // this machine.
  enum class Method { trace, steps, trace_or_steps };
  Method method = Method::trace;
  // Measures a step of a config on its device (measure_steps() in train/run/dry_run.h). Required unless the
  // method is `trace`.
  std::function<Result<Prediction>(const Config& config)> measure = {};
  // If set, is called with the reason before steps are measured because the model cannot be traced.
  std::function<void(const std::string& reason)> on_measuring = {};
};

// Loads the run's config with other settings, given as `key=value` words.
using LoadWith = std::function<Result<Config>(const std::vector<std::string>& words)>;

// Predicts the run by the method of the request. With steps, runs with a quarter and with half of its rows
// are measured, or with fewer rows if the device's memory is too small, and the run is on the line through
// them. Returns the errors of both methods, those of `measure`, and an error if steps are to be measured for
// more than one GPU.
Result<Prediction> predict(const LoadWith& load, const PredictionRequest& request);

// The functions below trace, whatever the method of the request.

// Predicts a run with these settings. Returns the errors of a run (bad data, settings that are not a valid
// model or optimizer, a batch that cannot be divided among ranks), and StatusCode::unsupported for an
// operator that tensors without memory cannot run, with its name.
Result<Prediction> predict(const Settings& settings, const PredictionRequest& request);
// Does the same with a task whose data is open. Builds a new model, which the task has afterwards: not for
// the task of a run.
Result<Prediction> predict(const Settings& settings, const OpenTask& task, const PredictionRequest& request);

// Predicts the run with these settings. The data of `task` is opened again only if settings of `data` differ.
// Null: it is always opened.
Result<Prediction> predict_with(const LoadWith& load, const std::vector<std::string>& words,
                                const PredictionRequest& request, const OpenTask* task = nullptr);

}  // namespace octavo_train
