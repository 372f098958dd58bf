// The settings of a run and the choices that were made for them on this machine. It is complete when
// start_run() returns, and nothing in it changes afterwards.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/data/stages.h"
#include "train/optim/fp8.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

struct Prediction;  // train/predict/prediction.h

struct RunConfig {
  // The config's settings, with the micro-batches of a rank. The task refers to them.
  std::shared_ptr<const Settings> settings;
  Fp8Choice fp8;
  std::vector<Stage> stages;
  std::string resumed_from;                    // the path of a checkpoint; empty: the run begins
  std::vector<std::string> changes;            // what differs from that checkpoint's run
  std::string yaml;                            // the text of config.yaml
  std::shared_ptr<const Prediction> forecast;  // what the run should need on its device; null: there is none

  [[nodiscard]] const TrainingSettings& training() const { return settings->training; }
  [[nodiscard]] std::int64_t steps() const { return stages.back().last_step; }
  // Returns the stage that does the step after `step`, or the last stage.
  [[nodiscard]] const Stage& stage_after(std::int64_t step) const;
  // Returns "stage 2 of 3: 40 samples, to step 8" for that stage.
  [[nodiscard]] std::string stage_text(std::int64_t step) const;
  [[nodiscard]] std::string step_text(std::int64_t step) const;  // "step 5/12"
};

}  // namespace octavo_train
