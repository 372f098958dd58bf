// Writes the pickle of a state dict for torch.load(weights_only=True). pickle.h reads such pickles.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"

#include <span>
#include <string>

namespace octavo_train {

// Returns the pickle of an OrderedDict of contiguous tensors. The key of each storage is the tensor's index
// in `sources`. REQUIRES: dtypes with a storage class in torch, and shapes that tensor_bytes() accepts.
std::string pickle_of(std::span<const TensorSource> sources);

}  // namespace octavo_train
