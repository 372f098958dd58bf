// What torch operators do on a GPU, without running them: the shapes of their results, their kernels, and the
// temporary memory of sums.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/stack.h>
#include <octavo/plan.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace octavo_train {

// Replaces an operator's arguments on the stack by its results. Returns false if the operator has no rule
// here. LibTorch lacks meta kernels of these operators: they are part of Python's torch.
bool apply_shape_rule(const std::string& name, torch::jit::Stack& stack, std::size_t arguments);

octavo::plan::Precision precision_of(torch::ScalarType type);

// Estimates an operator's kernel. Returns nullopt if the operator launches none, for example a view or an
// allocation.
std::optional<octavo::plan::Kernel> cost_of(const std::string& name, std::span<const c10::IValue> inputs,
                                            std::span<const c10::IValue> outputs);

// Returns the bytes of fp32 partial sums that many blocks write to global memory in a sum over the rows of
// [rows, columns] with contiguous columns, up to a hundred megabytes while the kernel runs. It follows how
// torch (2.5 to 2.13) divides such a sum among threads and blocks.
std::int64_t row_sum_bytes(const octavo::plan::Gpu& gpu, std::int64_t rows, std::int64_t columns);

}  // namespace octavo_train
