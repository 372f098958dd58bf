// Runs `octavo evaluate` in octavo-trainer.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::cli {

struct EvaluateRequest;
void run_evaluate(const EvaluateRequest& request);

}  // namespace octavo::cli
