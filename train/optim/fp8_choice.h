// Decides whether a run uses FP8 matmuls, and synchronizes their state between ranks. The matmuls themselves
// are in fp8.h.
//
// Only training steps use FP8. Evaluation and generation run without it, like a trained model elsewhere.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/optim/fp8.h"

#include <torch/types.h>

#include <string>

namespace octavo_train {

struct Fp8Choice {
  bool enabled = false;
  std::string warning;  // why FP8 is off although the settings enable it
};

// Decides whether FP8 is used on a device. If the device has no FP8, returns a plan without it (fp8.fallback:
// bf16) or an error with the possible fixes.
Result<Fp8Choice> choose_fp8(const Fp8Settings& settings, const torch::Device& device);
// Turns FP8 off on all ranks if any rank's device does not have it. Collective.
void agree(ProcessGroup& world, Fp8Choice& plan);

// Returns a line for the log that describes the settings.
std::string fp8_text(const Fp8Settings& settings);

// Replaces the maxima (amaxes) by their maximum over all ranks, in one collective. Call it on all ranks
// before step_done().
void reduce_maxima(ProcessGroup& world, Fp8& fp8);
// Copies rank 0's choices to all ranks. Call it between steps.
void share_choices(ProcessGroup& world, Fp8& fp8);

}  // namespace octavo_train
