// Everything that a run needs, put together and checked before the first step: device, data, model,
// optimizer, the checkpoint to go on from, and the run's folder. All errors of the settings are found here,
// and nothing is written before everything is right.
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
#include "train/files/folder_lock.h"
#include "train/log/run_log.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

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
  std::string resumed_from;          // a checkpoint's path; empty: from the beginning
  std::vector<std::string> changes;  // since that checkpoint
  std::string config_yaml;

  [[nodiscard]] std::int64_t steps() const { return stages.back().last_step; }
  [[nodiscard]] RunParts parts() { return {parameters, *optimizer, *scaler}; }
  // The stage that does the step after state.step (or the last one).
  [[nodiscard]] const Stage& stage() const;
  [[nodiscard]] std::string stage_text() const;  // "stage 2 of 3: 40 samples, to step 8"
  // Of the stage that does the next step; state.samples is another number until the loop has begun that
  // stage.
  [[nodiscard]] Sampler sampler() const;
  [[nodiscard]] MemoryByOwner owners() const;  // without activations
};

// Throws c10::Error if the device fails or has no memory left.
Result<std::unique_ptr<Session>> open_session(const Config& config, Console& console);

// A trained model, loaded from a checkpoint.
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
