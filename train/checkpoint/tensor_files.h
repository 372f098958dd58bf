// Tensors of LibTorch in safetensors files, and the weights of a model in one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"
#include "train/nn/named_tensors.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace octavo::train {

// What a writer of safetensors files takes. A tensor of a GPU is copied when its turn comes, one at a time.
// Throws c10::Error for dtypes that such a file has not.
std::vector<TensorSource> sources_of(const NamedTensors& tensors);

// Views of the file's bytes: they live as long as the file is open. `path` is what an error begins with.
Result<NamedTensors> views_of(const Safetensors& file, const std::string& path);

// Why `saved` does not fit `wanted` (names, dtypes, shapes); empty if it does. Names no more than eight.
std::string differences(const NamedTensors& saved, const NamedTensors& wanted);

// Copies each of `to` from the tensor of its name. REQUIRES: no differences.
void copy_tensors(const NamedTensors& from, const NamedTensors& to);

// The weights of a checkpoint alone.
Status load_weights(const std::string& checkpoint, const NamedTensors& to);

}  // namespace octavo::train
