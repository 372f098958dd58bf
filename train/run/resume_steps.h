// Predictions the steps of a run that begins or resumes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/data/stages.h"
#include "train/task.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

struct RunSteps {
  std::vector<Stage> stages;
  std::int64_t first_step = 0;  // see RunState
};

// Predictions the steps of a run. After a run has reached max_steps, a resume with more samples (a larger
// data.max_samples) trains max_steps more steps: they count from that checkpoint's step, which later
// checkpoints keep. Errors: those of plan_stages(), and a finished run whose data or number of steps was
// changed in such a way that no step is left. The same settings again are no error.
// `checkpoint`: empty for a run that begins. REQUIRES: the micro-batches of `settings` are those
// of a rank.
Result<RunSteps> plan_steps(const Settings& settings, const TaskData& data, int ranks,
                            const std::string& checkpoint);

// Returns the message that a run is complete, and how to train it further. `first_step`: see RunState.
std::string complete_text(const Settings& settings, const std::string& checkpoint, std::int64_t step,
                          std::int64_t first_step);

}  // namespace octavo_train
