// Converts LibTorch tensors to and from safetensors files, and loads a model's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

// Returns the format's name of a type. Throws c10::Error for a type that is not saved.
std::string stored_dtype(torch::ScalarType type);
// Returns nullopt for a type for which torch has no plain tensors.
std::optional<torch::ScalarType> scalar_type_of(std::string_view dtype);

std::string tensor_text(std::string_view dtype, at::IntArrayRef shape);  // BF16 [70, 61]

// Returns a view of the file's bytes, or a copy if they are not aligned to their elements, as in files of
// other writers. Returns an undefined tensor if scalar_type_of() does not support the dtype.
torch::Tensor view_of_stored(const StoredTensor& stored);

// A tensor of a file with its name in a model.
struct RenamedTensor {
  std::string name;
  const StoredTensor* stored = nullptr;
};

// The result of matching a file's tensors with a model's: the copies to make, and the differences.
struct Fit {
  std::vector<std::pair<torch::Tensor, const StoredTensor*>> copies;
  std::vector<std::string> missing;    // names of the model
  std::vector<std::string> left_over;  // names of the file, before renaming
  std::vector<std::string> misfits;    // `NAME is BF16 [70, 61], expected F32 [61]`
};

// Matches tensors by name. Floating-point types match each other, and so do integer types. REQUIRES: names
// are unique.
Fit fit_tensors(const std::vector<RenamedTensor>& stored, const NamedTensors& model);

// Copies the tensors and returns how many had another dtype. REQUIRES: no misfits.
std::int64_t copy_stored(const Fit& fit);

// Returns the tensors in the form that a safetensors writer reads. GPU tensors are copied to the host one at
// a time, when they are written. Throws c10::Error for dtypes that the format does not have.
std::vector<TensorSource> sources_of(const NamedTensors& tensors);

// Returns views of the file's bytes, valid as long as the file is open. Errors begin with `path`.
Result<NamedTensors> views_of(const Safetensors& file, const std::string& path);

// Returns why `saved` does not fit `wanted` (names, dtypes, shapes); empty if it does. Lists at most eight
// differences.
std::string differences(const NamedTensors& saved, const NamedTensors& wanted);

// Copies into each tensor of `to` the tensor of the same name. REQUIRES: no differences().
void copy_tensors(const NamedTensors& from, const NamedTensors& to);

// Loads only the weights of a checkpoint.
Status load_weights(const std::string& checkpoint, const NamedTensors& to);

}  // namespace octavo_train
