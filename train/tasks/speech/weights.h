// The weights of an archive in the places of a model's.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/files/safetensors.h"
#include "train/tensors.h"

#include <octavo/status.h>

#include <span>
#include <string>

namespace octavo::train {

class SpeechArchive;

// `model`: its parameters and buffers, under transformers' names. Dtypes are converted. Where names or shapes
// differ, the error lists every tensor that is missing, left over or of another shape, and nothing has
// changed. The result is a line for the console.
Result<std::string> load_archive(const SpeechArchive& archive, const NamedTensors& model);
// The same of tensors of a file, which `path` names.
Result<std::string> load_stored(const std::string& path, std::span<const StoredTensor> tensors,
                                const NamedTensors& model);

}  // namespace octavo::train
