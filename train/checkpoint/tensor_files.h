// Converts LibTorch tensors to and from safetensors files, and loads a model's weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <string>
#include <vector>

namespace octavo_train {

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
