// Everything that a run needs, put together and checked before the first step: device, data, model,
// optimizer, the checkpoint to go on from, and the run's folder. What can be wrong is found here, and nothing
// is written before all of it is right.
// SPDX-License-Identifier: MIT
#pragma once

#include "console.h"
#include "memory.h"
#include "models/text_model.h"
#include "optimizer.h"
#include "precision.h"
#include "run_state.h"
#include "train/config/config.h"
#include "train/data/loader.h"
#include "train/data/stages.h"
#include "train/data/text.h"
#include "train/files/file_descriptor.h"
#include "train/log/run_log.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// Of a run's folder, for one process; the system releases it when the process ends, however it does.
class FolderLock {
 public:
  // Makes the folder where it is missing. Another process that has it is an error.
  Status take(const std::string& folder);

 private:
  FileDescriptor folder_;
};

struct Session {
  Settings settings;
  torch::Device device{torch::kCPU};
  TextSplit text;
  std::vector<std::int64_t> evaluation;  // offsets of the windows
  std::vector<Stage> stages;
  std::shared_ptr<TextModel> model;
  NamedTensors parameters;
  OptimizerPlan plan;
  std::unique_ptr<StepOptimizer> optimizer;
  std::optional<LossScaler> scaler;
  std::optional<GradientSums> sums;
  std::optional<BatchLoader> loader;
  FolderLock lock;
  std::optional<RunLog> log;
  RunState state;
  std::string resumed_from;  // a checkpoint's path; empty: from the beginning
  std::string config_yaml;

  [[nodiscard]] std::int64_t steps() const { return stages.back().last_step; }
  [[nodiscard]] RunParts parts() { return {parameters, *optimizer, *scaler}; }
  // The stage that does the step after state.step (or the last one).
  [[nodiscard]] const Stage& stage() const;
  [[nodiscard]] std::string stage_text() const;  // "stage 2 of 3: 40 samples, to step 8"
  [[nodiscard]] Sampler sampler() const;
  [[nodiscard]] MemoryByOwner owners() const;  // without activations
};

// Throws c10::Error where the device fails, its memory's end included.
Result<std::unique_ptr<Session>> open_session(const Config& config, Console& console);

// The model of a run as a checkpoint has it, for use.
struct LoadedModel {
  Settings settings;
  torch::Device device{torch::kCPU};
  std::shared_ptr<TextModel> model;
  std::string checkpoint;
  std::vector<std::string> skipped;  // why newer checkpoints were not taken
};

// `run`: a run's folder (its newest valid checkpoint) or a checkpoint's.
Result<LoadedModel> load_model(const std::string& run, const DeviceName& device);

}  // namespace octavo::train
