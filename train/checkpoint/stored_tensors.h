// Tensors of safetensors files as torch sees them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo::train {

// As the format spells it. Throws c10::Error for a type that is not saved.
std::string stored_dtype(torch::ScalarType type);
// None: a type that torch has no plain tensors of.
std::optional<torch::ScalarType> scalar_type_of(std::string_view dtype);

std::string tensor_text(std::string_view dtype, at::IntArrayRef shape);  // BF16 [70, 61]

// A view of the file's bytes; a copy where they are not aligned to their elements, as other writers leave
// them. Undefined where scalar_type_of() knows no type.
torch::Tensor view_of_stored(const StoredTensor& stored);

// A tensor of a file under the name that it has in a model.
struct RenamedTensor {
  std::string name;
  const StoredTensor* stored = nullptr;
};

// A file's tensors held against a model's: which take which places, and what does not fit.
struct Fit {
  std::vector<std::pair<torch::Tensor, const StoredTensor*>> copies;
  std::vector<std::string> missing;    // of the model
  std::vector<std::string> left_over;  // of the file, as it calls them
  std::vector<std::string> misfits;    // `NAME is BF16 [70, 61], expected F32 [61]`
};

// Floating-point types fit each other, integers too. REQUIRES: no name twice.
Fit fit_tensors(const std::vector<RenamedTensor>& stored, const NamedTensors& model);

// Copies; how many were of another dtype. REQUIRES: no misfits.
std::int64_t copy_stored(const Fit& fit);

}  // namespace octavo::train
