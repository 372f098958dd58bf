// SPDX-License-Identifier: MIT
#include "train/run/divergence_guard.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/device/device.h"
#include "train/run/divergence_advice.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <string>

namespace octavo_train {
namespace {

constexpr std::int64_t kBadStepsInARow = 10;

}  // namespace

// All ranks have the same metrics of a step, so rank 0 alone logs the warning.
Status DivergenceGuard::warn(std::int64_t step, const std::string& what) {
  if (!run_.services.world->leads()) return {};
  console_.note("warning: " + what);
  return run_.services.record({{"kind", "warning"}, {"step", step}, {"message", what}});
}

bool DivergenceGuard::diverged() const { return counters_.skipped_in_a_row >= kBadStepsInARow; }

bool DivergenceGuard::weights_in_doubt() const {
  const bool overflow = run_.state.scaler.active() && std::isfinite(last_.loss);
  return counters_.skipped_in_a_row > 0 && !overflow;
}

Status DivergenceGuard::add_step(const StepMetric& numbers) {
  last_ = numbers;
  if (!last_.skipped) {
    counters_.skipped_in_a_row = 0;
    counters_.loss_sum += last_.loss;
    ++counters_.loss_count;
    return {};
  }
  ++counters_.skipped;
  if (++counters_.skipped_in_a_row == 1) first_bad_ = last_.step;
  const std::string what = "step " + std::to_string(last_.step) +
                           " was skipped: its gradients are not finite (loss " + significant(last_.loss, 6) +
                           ")";
  RETURN_IF_ERROR(warn(last_.step, what));
  if (!diverged()) return {};
  return Status::failed("training diverged: " + std::to_string(kBadStepsInARow) +
                        " steps in a row had gradients that are not finite, the last one step " +
                        std::to_string(last_.step) + "; " + advice());
}

std::string DivergenceGuard::advice() const {
  return divergence_advice(*run_.config.settings, {.step = first_bad_,
                                                   .steps = run_.config.steps(),
                                                   .fp8 = run_.state.fp8 != nullptr,
                                                   .bf16 = has_bf16(run_.services.device)});
}

Status DivergenceGuard::note_samples(bool trained) {
  if (trained) {
    empty_in_a_row_ = 0;
    return {};
  }
  const std::string what =
      "step " + std::to_string(counters_.step) + " made no update: none of its samples could be read";
  RETURN_IF_ERROR(warn(counters_.step, what));
  if (++empty_in_a_row_ < kBadStepsInARow) return {};
  return Status::failed(std::to_string(kBadStepsInARow) +
                        " steps in a row had no sample that could be read, the last one step " +
                        std::to_string(counters_.step) + " (" + std::to_string(counters_.left_out) +
                        " samples were left out since the run began); check the data");
}

}  // namespace octavo_train
