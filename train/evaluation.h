// An evaluation of a run: the task's tally, and what it says.
// SPDX-License-Identifier: MIT
#pragma once

#include "task.h"

#include <optional>

namespace octavo::train {

// None where a signal asks for an end. Throws what the task throws.
std::optional<Evaluation> evaluate_task(Task& task, const torch::Device& device);

}  // namespace octavo::train
