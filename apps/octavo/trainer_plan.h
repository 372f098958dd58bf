// Runs `octavo plan` in octavo-trainer, the process that loads LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/trainer_commands.h"

namespace octavo::cli {

void run_plan(const PlanCommand& request);

}  // namespace octavo::cli
