// One optimizer step by its formulas, element by element in fp32, on the caller's buffers. The arguments are
// those of octavo::step, so a test runs both on copies of one state and compares bytes. There is no guard, no
// threads and no checks.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "tests/reference/random.h"

#include <octavo/codec.h>

#include <span>

namespace reference {

void step(const octavo::GroupConfig& config, std::span<const octavo::TensorArgs> tensors,
          const octavo::StepArgs& args);

// Returns the moment in a state slot, as the codec describes it.
octavo::MomentSpec slot_spec(const octavo::GroupConfig& config, const octavo::TensorSpec& tensor, int slot);

}  // namespace reference
