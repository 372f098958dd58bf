// SPDX-License-Identifier: MIT
#include "estimate.h"

#include "train/format/numbers.h"

namespace octavo::train {
namespace {

constexpr double kHour = 3600;

}  // namespace

std::string long_run_note(const Settings& settings, std::int64_t step, std::int64_t steps, double seconds,
                          bool on_cpu) {
  const double left = static_cast<double>(steps - step) * seconds;
  if (left < kHour) return {};
  std::string out = "this run will take about " + duration_text(left) + ": " + std::to_string(steps - step) +
                    " steps of " + duration_text(seconds) + " each. To make it shorter: ";
  if (on_cpu) out += "train on a GPU (training.device is the CPU here); ";
  const auto is = [](const char* key, std::int64_t value) {
    return std::string(key) + " is " + std::to_string(value);
  };
  out += "a smaller model (" + is("n_embd", settings.model.n_embd) + ", " +
         is("mlp_internal_dim_multiplier", settings.model.mlp_internal_dim_multiplier) + ", " +
         is("n_layer", settings.model.n_layer) + "); less text in a step (" +
         is("per_device_train_batch_size", settings.training.per_device_train_batch_size) + ", " +
         is("gradient_accumulation_steps", settings.training.gradient_accumulation_steps) + ", " +
         is("block_size", settings.data.block_size) + ')';
  const auto hour = static_cast<std::int64_t>(kHour / seconds);
  if (settings.training.max_steps && hour > 0)
    out += "; fewer steps (max_steps=" + std::to_string(step + hour) + " takes an hour)";
  return out;
}

}  // namespace octavo::train
