// SPDX-License-Identifier: MIT
#include "train/run/run_config.h"

namespace octavo_train {

const Stage& RunConfig::stage_after(std::int64_t step) const {
  for (const Stage& each : stages) {
    if (step < each.last_step) return each;
  }
  return stages.back();
}

std::string RunConfig::stage_text(std::int64_t step) const {
  const Stage& now = stage_after(step);
  return "stage " + std::to_string(&now - stages.data() + 1) + " of " + std::to_string(stages.size()) + ": " +
         std::to_string(now.samples) + " samples, to step " + std::to_string(now.last_step);
}

std::string RunConfig::step_text(std::int64_t step) const {
  return "step " + std::to_string(step) + '/' + std::to_string(steps());
}

}  // namespace octavo_train
