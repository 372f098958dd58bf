// An evaluation of a run: every rank tallies its share, and all have the result of all shares.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/world.h"
#include "train/task.h"

#include <optional>

namespace octavo::train {

// All ranks take part and have the same result in bits; none where a signal asks any of them for an end.
// Throws what the task throws, and WorldError.
std::optional<Evaluation> evaluate_task(Task& task, World& world, const torch::Device& device);

// The sum of the ranks' shares, on all ranks; examples are in the order of samples. None where any rank has
// none.
std::optional<Tally> sum_over_ranks(World& world, std::optional<Tally> mine);

}  // namespace octavo::train
