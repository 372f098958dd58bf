// The pickle of a state dict, for torch.load(weights_only=True); see pickle.h for reading one.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"

#include <span>
#include <string>

namespace octavo::train {

// An OrderedDict of contiguous tensors, the storage of each under its number in `sources`.
// REQUIRES: dtypes with a storage class in torch, and shapes that tensor_bytes() takes.
std::string pickle_of(std::span<const TensorSource> sources);

}  // namespace octavo::train
