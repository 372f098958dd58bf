// The evaluation of a run: every rank evaluates its share of the samples, and all ranks get the sum of all
// shares.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"
#include "train/distributed/process_group.h"
#include "train/task.h"

#include <optional>
#include <vector>

namespace octavo_train {

// All ranks call it and return equal bits; none if a signal stopped any rank. Throws exceptions of the task,
// and ProcessGroupError.
std::optional<Evaluation> evaluate_task(Task& task, ProcessGroup& process_group, const torch::Device& device);

// Returns the sum of the ranks' shares on all ranks, with examples in the order of samples; none if any rank
// has none.
std::optional<Tally> sum_over_ranks(ProcessGroup& process_group, std::optional<Tally> mine);

// Returns an evaluation's members of the log's record.
nlohmann::ordered_json evaluation_json(const Evaluation& result, const Unit& unit);
// Prints a few examples, with the words that differ.
void show_examples(const std::vector<Example>& examples, Console& console);

}  // namespace octavo_train
