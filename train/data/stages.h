// How the steps of a run are divided into stages of progressive training.
//
// A stage trains on the first so many samples; a run without data.stages has one, with max_samples. A size
// beyond the data means all of it, as -1 does, and the stages after the first that has all the data are left
// out: [100000, 500000, 1000000, -1] on 300000 samples is [100000, -1], so no stage is run twice and no step
// is given to a stage that adds nothing.
//
// With max_steps the steps are divided equally among the stages that are left, and the last takes the
// remainder. With num_train_epochs each stage makes so many passes over its own samples, and its last step is
// filled up with samples of the next pass. Where batches differ in size, the passes are planned to count
// their batches.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/data/batches.h"

#include <octavo/status.h>

#include <cstdint>
#include <vector>

namespace octavo::train {

struct Stage {
  std::int64_t samples = 0;     // as many as there are, at most
  std::int64_t first_step = 0;  // steps done before it
  std::int64_t last_step = 0;   // steps done after it: above first_step, and the next stage's first_step
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Samples that one optimizer step draws, on all ranks together, where batches are of one size.
[[nodiscard]] inline std::int64_t draws_per_step(const TrainingSettings& training, int ranks = 1) {
  return training.per_device_train_batch_size * training.gradient_accumulation_steps * ranks;
}

// At least one stage. The number of steps of the run is last_step of the last stage. `samples_available` is
// Task::samples(), `own` its batches() or null: batches of one size. Errors: fewer steps than stages, or so
// many that their samples cannot be counted. Throws what `own` throws. REQUIRES: settings that parse() or
// load() gave, samples_available >= 1.
// In a run without data.stages, max_steps counts from `first_step`.
Result<std::vector<Stage>> plan_stages(const DataSettings& data, const TrainingSettings& training,
                                       std::int64_t samples_available, const Batches* own = nullptr,
                                       int ranks = 1, std::int64_t first_step = 0);

}  // namespace octavo::train
