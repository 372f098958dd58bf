// Computes output shapes of operators that LibTorch has no meta kernel for. Python's meta kernels are not
// part of LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace octavo_train {

// Replaces an operator's arguments on the stack by its results. Returns false if the operator has no rule
// here.
bool apply_shape_rule(const std::string& name, ::torch::jit::Stack& stack, std::size_t arguments);

}  // namespace octavo_train
