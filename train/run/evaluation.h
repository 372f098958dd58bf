// The evaluation of a run: every rank evaluates its share of the samples, and all ranks get the sum of all
// shares.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/process_group.h"
#include "train/task.h"

#include <optional>

namespace octavo_train {

// All ranks call it and return equal bits; none if a signal stopped any rank. Throws exceptions of the task,
// and ProcessGroupError.
std::optional<Evaluation> evaluate_task(Task& task, ProcessGroup& world, const torch::Device& device);

// Returns the sum of the ranks' shares on all ranks, with examples in the order of samples; none if any rank
// has none.
std::optional<Tally> sum_over_ranks(ProcessGroup& world, std::optional<Tally> mine);

}  // namespace octavo_train
