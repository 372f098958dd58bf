// Estimates what a torch operator costs on a GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/ivalue.h>
#include <octavo/plan.h>
#include <torch/types.h>

#include <optional>
#include <span>
#include <string>

namespace octavo_train {

octavo::plan::Precision precision_of(::torch::ScalarType type);

// Returns nullopt if the operator launches no kernel, for example a view or an allocation.
std::optional<octavo::plan::Kernel> cost_of(const std::string& name, std::span<const c10::IValue> inputs,
                                            std::span<const c10::IValue> outputs);

}  // namespace octavo_train
