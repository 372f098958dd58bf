// SPDX-License-Identifier: MIT
#include "train/run/divergence.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/config/config.h"
#include "train/config/options.h"
#include "train/device/device.h"

#include <fmt/ranges.h>
#include <octavo/fp8.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace octavo_train {
namespace {

constexpr double kFarTooHigh = 10;  // times the default learning rate
constexpr double kHardlyClips = 100;
constexpr std::int64_t kEarly = 1000;  // steps; a later divergence is not caused by a missing warm-up

std::string number(double value) { return significant(value, 3); }

double default_rate(const Settings& settings) {
  const auto config = parse("task: " + settings.task, "defaults");
  return config.ok() ? config->settings.training.learning_rate : 1e-3;
}

std::string smaller_rate(const TrainingSettings& training, double usual, bool far) {
  const double rate = training.learning_rate;
  const std::string text = significant(far ? usual : rate / 3, 1);
  return fmt::format("learning_rate={}{} (it is {})", text,
                     training.min_lr > (far ? usual : rate / 4) ? " min_lr=0" : "", number(rate));
}

std::string longer_warmup(const TrainingSettings& training, std::int64_t steps) {
  const std::int64_t now = training.warmup_steps;
  const std::int64_t proposed = now > 0 ? 2 * now : std::clamp<std::int64_t>(steps / 20, 10, kEarly);
  return fmt::format("warmup_steps={} (it is {})", proposed, now);
}

constexpr std::int64_t kBadStepsInARow = 10;

}  // namespace

std::string divergence_advice(const Settings& settings, const Divergence& found) {
  const TrainingSettings& training = settings.training;
  const double usual = default_rate(settings);
  const bool far = training.learning_rate > kFarTooHigh * usual;
  const bool float16 = training.compute_dtype == ComputeType::float16;
  const bool clipped = training.max_grad_norm > 0 && training.max_grad_norm < kHardlyClips;
  std::vector<std::string> out;
  if (far) out.push_back(smaller_rate(training, usual, far));
  if (float16 && found.bf16) out.emplace_back("compute_dtype=bfloat16 (float16 overflows above 65504)");
  if (found.fp8) {
    const octavo::fp8::Format format = training.fp8.recipe.format;
    if (format != octavo::fp8::Format::e5m2)
      out.push_back(fmt::format("fp8.format=e5m2 (it is {}, whose E4M3 numbers end at 448)",
                                octavo::fp8::name(format)));
    out.emplace_back("fp8.enabled=false");
  }
  if (!clipped)
    out.push_back(training.max_grad_norm > 0
                      ? "max_grad_norm=1.0 (it is " + number(training.max_grad_norm) + ")"
                      : "max_grad_norm=1.0 (gradients are not clipped)");
  if (!far) out.push_back(smaller_rate(training, usual, far));
  if (found.step <= std::max(2 * training.warmup_steps, kEarly))
    out.push_back(longer_warmup(training, found.steps));
  // States of 4 bits are a cause only where nothing else is unusual.
  const octavo::StateFormat state = training.optimizer.state;
  if ((state == octavo::StateFormat::int4 || state == octavo::StateFormat::int4_rank1) && !far && clipped &&
      !float16)
    out.push_back(
        fmt::format("optimizer={}_8bit (its states have 4 bits)", name(training.optimizer.algorithm)));
  return fmt::format("try, the most likely first: {}", fmt::join(out, ", "));
}

// All ranks have the same metrics of a step, so rank 0 alone logs the warning.
Status DivergenceGuard::warn(std::int64_t step, const std::string& what) {
  if (!services_.process_group->leads()) return {};
  services_.console.note("warning: " + what);
  return services_.record({{"kind", "warning"}, {"step", step}, {"message", what}});
}

bool DivergenceGuard::diverged() const { return counters_.skipped_in_a_row >= kBadStepsInARow; }

bool DivergenceGuard::weights_in_doubt() const {
  const bool overflow = scaler_.active() && std::isfinite(last_.loss);
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
  RETURN_IF_ERROR(warn(last_.step, fmt::format("step {} was skipped: its gradients are not finite (loss {})",
                                               last_.step, significant(last_.loss, 6))));
  if (!diverged()) return {};
  return failed_error(
      "training diverged: {} steps in a row had gradients that are not finite, the last one step {}; {}",
      kBadStepsInARow, last_.step, advice());
}

std::string DivergenceGuard::advice() const {
  return divergence_advice(
      *config_.settings,
      {.step = first_bad_, .steps = config_.steps(), .fp8 = fp8_, .bf16 = has_bf16(services_.device)});
}

Status DivergenceGuard::note_samples(bool trained) {
  if (trained) {
    empty_in_a_row_ = 0;
    return {};
  }
  RETURN_IF_ERROR(
      warn(counters_.step,
           fmt::format("step {} made no update: none of its samples could be read", counters_.step)));
  if (++empty_in_a_row_ < kBadStepsInARow) return {};
  return failed_error(
      "{} steps in a row had no sample that could be read, the last one step {} ({} samples were "
      "skipped since the run began); check the data",
      kBadStepsInARow, counters_.step, counters_.left_out);
}

}  // namespace octavo_train
