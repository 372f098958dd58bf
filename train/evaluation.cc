// SPDX-License-Identifier: MIT
#include "evaluation.h"

#include "signals.h"

namespace octavo::train {

std::optional<Evaluation> evaluate_task(Task& task, const torch::Device& device) {
  const auto all = task.tally({device, [] { return StopSignals::received() != 0; }});
  if (!all) return std::nullopt;
  return task.evaluation(*all);
}

}  // namespace octavo::train
