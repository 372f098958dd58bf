// One optimizer step by its formulas, element by element in fp32, on the caller's buffers: the same arguments
// as octavo::step, so a test runs both on copies of one state and compares bytes. No guard, no threads, no
// checks.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "tests/reference/random.h"

#include <octavo/codec.h>

#include <span>

namespace reference {

void step(const octavo::GroupConfig& config, std::span<const octavo::TensorArgs> tensors,
          const octavo::StepArgs& args);

// The moment that a state slot holds, as the codec describes it.
octavo::MomentSpec slot_spec(const octavo::GroupConfig& config, const octavo::TensorSpec& tensor, int slot);

}  // namespace reference
