// SPDX-License-Identifier: MIT
#include "train/run/divergence_guard.h"

#include "train/device/device.h"
#include "train/run/divergence_advice.h"
#include "train/strings/numbers.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <string>

namespace octavo::train {
namespace {

constexpr std::int64_t kBadStepsInARow = 10;

}  // namespace

// All ranks have the same numbers of a step: rank 0 says it.
Status Health::warn(std::int64_t step, const std::string& what) {
  if (!session_.world->leads()) return {};
  console_.note("warning: " + what);
  return session_.record({{"kind", "warning"}, {"step", step}, {"message", what}});
}

bool Health::diverged() const { return state_.skipped_in_a_row >= kBadStepsInARow; }

bool Health::weights_in_doubt() const {
  const bool overflow = session_.scaler->active() && std::isfinite(last_.loss);
  return state_.skipped_in_a_row > 0 && !overflow;
}

Status Health::take(const StepNumbers& numbers) {
  last_ = numbers;
  if (!last_.skipped) {
    state_.skipped_in_a_row = 0;
    state_.loss_sum += last_.loss;
    ++state_.loss_count;
    return {};
  }
  ++state_.skipped;
  if (++state_.skipped_in_a_row == 1) first_bad_ = last_.step;
  const std::string what = "step " + std::to_string(last_.step) +
                           " was skipped: its gradients are not finite (loss " + significant(last_.loss, 6) +
                           ")";
  if (Status bad = warn(last_.step, what); !bad.ok()) return bad;
  if (!diverged()) return {};
  return Status::failed("training diverged: " + std::to_string(kBadStepsInARow) +
                        " steps in a row had gradients that are not finite, the last one step " +
                        std::to_string(last_.step) + "; " + advice());
}

std::string Health::advice() const {
  return divergence_advice(session_.settings, {.step = first_bad_,
                                               .steps = session_.steps(),
                                               .fp8 = session_.fp8 != nullptr,
                                               .bf16 = has_bf16(session_.device)});
}

Status Health::fed(bool trained) {
  if (trained) {
    empty_in_a_row_ = 0;
    return {};
  }
  const std::string what =
      "step " + std::to_string(state_.step) + " made no update: none of its samples could be read";
  if (Status bad = warn(state_.step, what); !bad.ok()) return bad;
  if (++empty_in_a_row_ < kBadStepsInARow) return {};
  return Status::failed(std::to_string(kBadStepsInARow) +
                        " steps in a row had no sample that could be read, the last one step " +
                        std::to_string(state_.step) + " (" + std::to_string(state_.left_out) +
                        " samples were left out since the run began); check the data");
}

}  // namespace octavo::train
