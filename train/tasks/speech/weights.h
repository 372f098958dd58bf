// The weights of an archive in the places of a model's.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/reinitialized_layers.h"
#include "train/formats/safetensors.h"
#include "train/nn/named_tensors.h"

#include <octavo/status.h>

#include <span>
#include <string>
#include <vector>

namespace octavo::train {

class SpeechArchive;

// As NeMo: decoder and joint.
FreshParts speech_fresh_parts();

// `path` names the file of the tensors. `model`: its parameters and buffers, under transformers' names.
// Dtypes are converted. Where names or shapes differ, the error lists every tensor that is missing, left over
// or of another shape, and nothing has changed. The result is a line for the console.
Result<std::string> load_stored(const std::string& path, std::span<const StoredTensor> tensors,
                                const NamedTensors& model);

// The same of an archive, for a run that begins: where it has another vocabulary, speech_fresh_parts() keep
// their values, and another line says so.
Result<std::vector<std::string>> load_archive(const SpeechArchive& archive, const NamedTensors& model);

}  // namespace octavo::train
