// SPDX-License-Identifier: MIT
#include "train/checkpoint/resume_micro_batches.h"

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/resume.h"
#include "train/config/micro_batches.h"

#include <string>

namespace octavo_train {
namespace {

bool ask_for_the_same(const TrainingSettings& then, const TrainingSettings& now) {
  return then.per_device_train_batch_size == now.per_device_train_batch_size &&
         then.gradient_accumulation_steps == now.gradient_accumulation_steps &&
         then.global_batch_size == now.global_batch_size;
}

Status cannot_divide(const std::string& checkpoint, const TrainingSettings& training, std::int64_t batches,
                     std::int64_t ranks) {
  const std::string has = checkpoint + ": its steps have " + std::to_string(batches) + " batches";
  if (training.per_device_train_batch_size == kNoLimit) {
    std::string possible;
    for (std::int64_t count = 1; count <= batches; ++count) {
      if (batches % count == 0) possible += (possible.empty() ? "" : ", ") + std::to_string(count);
    }
    return Status::invalid(has + ", which " + std::to_string(ranks) +
                           " ranks cannot divide; ranks that can: " + possible);
  }
  const std::int64_t rows = training.per_device_train_batch_size, global = batches * rows;
  return Status::invalid(has + " of " + std::to_string(rows) + " samples, " + std::to_string(global) +
                         " in all, and a run that goes on keeps the samples of its steps; " +
                         possible_batch_splits(global, rows, ranks));
}

}  // namespace

Result<std::int64_t> micro_batches_per_rank(const Settings& given, std::int64_t ranks,
                                            const std::string& checkpoint) {
  const TrainingSettings& training = given.training;
  if (checkpoint.empty() || training.global_batch_size) return accumulation_for(training, ranks);
  ASSIGN_OR_RETURN(const auto state, saved_state(checkpoint));
  const auto then = saved_settings(checkpoint);
  if (!then.ok() || !ask_for_the_same(then->training, training)) return accumulation_for(training, ranks);
  const std::int64_t batches =
      state.batches_per_step > 0 ? state.batches_per_step : training.gradient_accumulation_steps;
  if (batches % ranks != 0) return cannot_divide(checkpoint, training, batches, ranks);
  return batches / ranks;
}

}  // namespace octavo_train
