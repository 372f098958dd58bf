// Declares the parts of a run other than its state: RunConfig (its settings, the choices that were made for
// them on this machine, and its steps) and Services.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/folder_lock.h"
#include "train/config/settings.h"
#include "train/console/console.h"
#include "train/data/stages.h"
#include "train/distributed/process_group.h"
#include "train/log/run_log.h"
#include "train/optim/fp8.h"
#include "train/task.h"

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

struct Prediction;  // train/predict/prediction.h

// Returns the stage that does the step after `step`, or the last stage.
const Stage& stage_after(const std::vector<Stage>& stages, std::int64_t step);

// start_run() makes it when everything in it is known; nothing in it changes.
struct RunConfig {
  // The config's settings, with the micro-batches of a rank. The task refers to them.
  std::shared_ptr<const Settings> settings;
  Fp8Choice fp8;
  std::vector<Stage> stages;
  std::string resumed_from;                      // the path of a checkpoint; empty: the run begins
  std::vector<std::string> changes;              // what differs from that checkpoint's run
  std::string yaml;                              // the text of config.yaml
  std::shared_ptr<const Prediction> prediction;  // of memory and time on its device; null: there is none

  [[nodiscard]] const TrainingSettings& training() const { return settings->training; }
  [[nodiscard]] std::int64_t steps() const { return stages.back().last_step; }
  [[nodiscard]] const Stage& stage_after(std::int64_t step) const {
    return octavo_train::stage_after(stages, step);
  }
  // Returns "stage 2 of 3: 40 samples, to step 8" for that stage.
  [[nodiscard]] std::string stage_text(std::int64_t step) const;
  [[nodiscard]] std::string step_text(std::int64_t step) const;  // "step 5/12"
};

// The objects outside of a model and its data that a run uses.
struct Services {
  std::shared_ptr<ProcessGroup> process_group;  // not null
  torch::Device device;
  Heartbeat& console;           // outlives the run
  FolderLock lock;              // Rank 0 holds it; a dry run does not.
  std::unique_ptr<RunLog> log;  // It is null in a dry run, and on all ranks except 0.

  // Writes a line of the log, if there is one.
  Status record(const nlohmann::ordered_json& line) const {
    return log != nullptr ? log->write(line) : Status();
  }
};

struct RunSteps {
  std::vector<Stage> stages;
  std::int64_t first_step = 0;  // see RunState
};

// Computes the steps of a run that begins or resumes. After a run has reached max_steps, a resume with more
// samples (a larger data.max_samples) trains max_steps more steps: they count from that checkpoint's step,
// which later checkpoints keep. Errors: those of plan_stages(), and a finished run whose data or number of
// steps was changed in such a way that no step is left. The same settings again are no error. `checkpoint`:
// empty for a run that begins. REQUIRES: the micro-batches of `settings` are those of a rank.
Result<RunSteps> plan_steps(const Settings& settings, const TaskData& data, int ranks,
                            const std::string& checkpoint);

// Returns the message that a run is complete, and how to train it further. `first_step`: see RunState.
std::string complete_text(const Settings& settings, const std::string& checkpoint, std::int64_t step,
                          std::int64_t first_step);

}  // namespace octavo_train
