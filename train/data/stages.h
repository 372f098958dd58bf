// Divides the steps of a run into stages of progressive training.
//
// A stage trains on the first N samples; a run without data.stages has one stage, with max_samples. A size
// beyond the data means all of it, as -1 does. Stages after the first one that has all the data are skipped:
// [100000, 500000, 1000000, -1] on 300000 samples is [100000, -1]. So no stage is run twice, and no step is
// given to a stage that adds nothing.
//
// With max_steps the steps are divided equally among the remaining stages, and the last one gets the
// remainder. With num_train_epochs each stage makes that number of epochs over its own samples, and its last
// step is filled up with samples of the next epoch. If batches differ in size, all batches of the epochs are
// computed in advance to count them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/data/order.h"

#include <cstdint>
#include <vector>

namespace octavo_train {

struct Stage {
  std::int64_t samples = 0;     // at most the number of available samples
  std::int64_t first_step = 0;  // steps done before it
  std::int64_t last_step = 0;   // steps done after it: above first_step, and the next stage's first_step
  friend bool operator==(const Stage&, const Stage&) = default;
};

// Returns the number of samples that one optimizer step draws, over all ranks, if batches are of one size.
[[nodiscard]] inline std::int64_t draws_per_step(const TrainingSettings& training, int ranks = 1) {
  return training.per_device_train_batch_size * training.gradient_accumulation_steps * ranks;
}

// Returns at least one stage. The number of steps of the run is last_step of the last stage.
// `samples_available` is TaskData::samples. `own` is the task's batches, or null for batches of one size. In
// a run without data.stages, max_steps counts from `first_step`. Errors: fewer steps than stages, or too many
// samples to count. Rethrows exceptions of `own`. REQUIRES: settings that were returned by parse() or load(),
// samples_available >= 1.
Result<std::vector<Stage>> plan_stages(const DataSettings& data, const TrainingSettings& training,
                                       std::int64_t samples_available, const Batches* own = nullptr,
                                       int ranks = 1, std::int64_t first_step = 0);

}  // namespace octavo_train
