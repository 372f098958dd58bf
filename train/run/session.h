// Everything a run consists of, from its config to its first batch: opened whole, or an error that says why
// not.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder/folder_lock.h"
#include "train/checkpoint/initial_weights.h"
#include "train/checkpoint/run_state.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/data/prefetch.h"
#include "train/data/stages.h"
#include "train/device/memory.h"
#include "train/distributed/world.h"
#include "train/log/run_log.h"
#include "train/model/model.h"
#include "train/optim/fp8_choice.h"
#include "train/optim/gradients.h"
#include "train/optim/optimizer.h"
#include "train/optim/precision.h"
#include "train/optim/sharded_weights.h"
#include "train/run/components.h"
#include "train/task.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// What passes have computed on.
struct Fed {
  std::int64_t passes = 0, rows = 0;
  double length = 0, padded_length = 0;  // see Batch
  double largest = 0;                    // padded_length of the largest micro-batch of this process

  Fed& operator+=(const Fed& more) {
    passes += more.passes, rows += more.rows;
    length += more.length, padded_length += more.padded_length;
    largest = std::max(largest, more.largest);
    return *this;
  }
};

struct Plan;  // train/predict/plan.h

struct Session {
  std::shared_ptr<World> world;
  Settings settings;
  torch::Device device{torch::kCPU};
  std::unique_ptr<Task> task;
  std::vector<Stage> stages;
  std::shared_ptr<torch::nn::Module> model;
  NamedTensors parameters, buffers;
  ParameterGroups groups;
  OptimizerPlan plan;
  std::unique_ptr<ShardedWeights> shards;  // ZeRO's; none: every rank has all of the optimizer
  std::unique_ptr<StepOptimizer> optimizer;
  Fp8Plan fp8_plan;
  std::unique_ptr<Fp8> fp8;        // null: products without it
  std::size_t shared_choices = 0;  // of rank 0, that all ranks have
  bool gated = false;              // the task waits for weights itself: Task::set_gate
  std::optional<LossScaler> scaler;
  std::unique_ptr<Gradients> gradients;
  std::vector<std::unique_ptr<Stateful>> parts;
  std::optional<Prefetch<Batch>> batches;
  FolderLock lock;
  std::optional<RunLog> log;  // none: a dry run, or another rank than 0
  RunState state;
  Fed fed;                           // in this process
  double waited = 0;                 // seconds until this process had read its batches; others are not asked
  std::string resumed_from;          // a checkpoint's path; empty: from the beginning
  std::vector<std::string> changes;  // since that checkpoint
  std::optional<WarmStart> warm;     // what the first weights were taken from
  std::string config_yaml;
  std::shared_ptr<const Plan> forecast;  // what the run should need on its device; null: there is no plan

  [[nodiscard]] std::int64_t steps() const { return stages.back().last_step; }
  // The stage that does the step after state.step (or the last one).
  [[nodiscard]] const Stage& stage() const;
  [[nodiscard]] std::string stage_text() const;                  // "stage 2 of 3: 40 samples, to step 8"
  [[nodiscard]] std::string step_text(std::int64_t step) const;  // "step 5/12"
  // Of the stage that does the next step; state.samples is another number until the loop has begun that
  // stage.
  [[nodiscard]] Order order() const;
  // What this rank's batches of that stage are made of.
  [[nodiscard]] Prefetch<Batch>::Source source() const;
  [[nodiscard]] MemoryByOwner owners() const;  // without activations
  // All ranks take part, and have the result of rank 0, which alone writes. Both wait for weights. `written`
  // is called on rank 0 as soon as the checkpoint is there, because another rank may fail after that.
  Result<SavedCheckpoint> save(const std::optional<EvaluationRecord>& evaluation,
                               const std::function<void(const SavedCheckpoint&)>& written) const;
  // The same without the others. REQUIRES: this rank has everything that is saved.
  [[nodiscard]] Result<SavedCheckpoint> write(const std::optional<EvaluationRecord>& evaluation) const;
  // Writes a line of the log, where there is one.
  Status record(const nlohmann::ordered_json& line);
};

// A dry run reads no checkpoint, takes no lock and has no log: nothing of it touches the run's folder.
enum class Purpose { run, dry_run };

// `task`: what is trained; null: the task that the config names. `world`: the ranks that open it together;
// null: this process alone. Throws c10::Error if the device fails or has no memory left, and what the task
// throws; with a group these are errors, and WorldError is thrown.
Result<std::unique_ptr<Session>> open_session(const Config& config, Console& console,
                                              Purpose purpose = Purpose::run,
                                              std::unique_ptr<Task> task = nullptr,
                                              std::shared_ptr<World> world = nullptr);

}  // namespace octavo::train
