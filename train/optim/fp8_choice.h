// Whether a run has products in FP8, and what its ranks agree on for them. fp8.h has the
// products themselves.
//
// FP8 is of the passes of a step alone. What is evaluated or generated is computed without it, as a trained
// model is elsewhere.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/fp8_settings.h"
#include "train/distributed/world.h"
#include "train/optim/fp8.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <string>

namespace octavo::train {

struct Fp8Plan {
  bool enabled = false;
  std::string warning;  // why not, where it was asked for
};

// Where the device has no FP8: an error that says what to do, or, with the fallback, a plan without.
Result<Fp8Plan> plan_fp8(const Fp8Settings& settings, const torch::Device& device);
// Ranks may have different devices: all of them have FP8, or none has.
void agree(World& world, Fp8Plan& plan);

// The settings, in a line for the log.
std::string fp8_text(const Fp8Settings& settings);

// Before step_done(), on all ranks: the maxima of all, in one collective.
void reduce_maxima(World& world, Fp8& fp8);
// Rank 0's choices for all ranks, between steps.
void share_choices(World& world, Fp8& fp8);

}  // namespace octavo::train
