// Tensors of safetensors files as torch sees them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/files/safetensors.h"

#include <torch/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace octavo::train {

// As the format spells it. Throws c10::Error for a type that is not saved.
std::string stored_dtype(torch::ScalarType type);
// None: a type that torch has no plain tensors of.
std::optional<torch::ScalarType> scalar_type_of(std::string_view dtype);

std::string tensor_text(std::string_view dtype, at::IntArrayRef shape);  // BF16 [70, 61]

// A view of the file's bytes; a copy where they are not aligned to their elements, as other writers leave
// them. Undefined where scalar_type_of() knows no type.
torch::Tensor view_of_stored(const StoredTensor& stored);

}  // namespace octavo::train
