// Shapes of operators that LibTorch has no rule for on its meta device: those of Python are not in it.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace octavo::train {

// Replaces an operator's arguments by its results. False: there is no rule.
bool apply_shape_rule(const std::string& name, ::torch::jit::Stack& stack, std::size_t arguments);

}  // namespace octavo::train
