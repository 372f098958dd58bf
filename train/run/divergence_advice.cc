// SPDX-License-Identifier: MIT
#include "train/run/divergence_advice.h"

#include "train/config/config.h"
#include "train/config/options.h"
#include "train/base/numbers.h"

#include <octavo/fp8.h>

#include <algorithm>
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
  return "learning_rate=" + text + (training.min_lr > (far ? usual : rate / 4) ? " min_lr=0" : "") +
         " (it is " + number(rate) + ")";
}

std::string longer_warmup(const TrainingSettings& training, std::int64_t steps) {
  const std::int64_t now = training.warmup_steps;
  const std::int64_t proposed = now > 0 ? 2 * now : std::clamp<std::int64_t>(steps / 20, 10, kEarly);
  return "warmup_steps=" + std::to_string(proposed) + " (it is " + std::to_string(now) + ")";
}

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
      out.push_back("fp8.format=e5m2 (it is " + std::string(octavo::fp8::name(format)) +
                    ", whose E4M3 numbers end at 448)");
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
    out.push_back("optimizer=" + std::string(name(training.optimizer.algorithm)) +
                  "_8bit (its states have 4 bits)");
  std::string text = "try, the most likely first: ";
  for (const std::string& each : out) text += (&each == out.data() ? "" : ", ") + each;
  return text;
}

}  // namespace octavo_train
