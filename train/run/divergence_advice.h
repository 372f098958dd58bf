// Advice for a run whose gradients are not finite.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <cstdint>
#include <string>

namespace octavo_train {

struct Divergence {
  std::int64_t step = 1;   // the first step whose gradients were not finite
  std::int64_t steps = 1;  // steps of the run
  bool fp8 = false;        // FP8 is in use
  bool bf16 = true;        // the device computes in bfloat16
};

// Returns "try, the most likely first: learning_rate=0.001 (it is 1e+30), max_grad_norm=1.0 (gradients are
// not clipped)". It names settings that may be the cause, with their values.
std::string divergence_advice(const Settings& settings, const Divergence& found);

}  // namespace octavo_train
