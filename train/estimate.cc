// SPDX-License-Identifier: MIT
#include "estimate.h"

#include "train/format/numbers.h"

namespace octavo::train {
namespace {

constexpr double kHour = 3600;

}  // namespace

std::string long_run_note(const Settings& settings, const std::string& shorter, std::int64_t step,
                          std::int64_t steps, double seconds, bool on_cpu) {
  const double left = static_cast<double>(steps - step) * seconds;
  if (left < kHour) return {};
  std::string out = "this run will take about " + duration_text(left) + ": " + std::to_string(steps - step) +
                    " steps of " + duration_text(seconds) + " each. To make it shorter: ";
  if (on_cpu) out += "train on a GPU (training.device is the CPU here); ";
  out += shorter;
  const auto hour = static_cast<std::int64_t>(kHour / seconds);
  if (settings.training.max_steps && hour > 0)
    out += "; fewer steps (max_steps=" + std::to_string(step + hour) + " takes an hour)";
  return out;
}

}  // namespace octavo::train
