// Loads the weights of an archive into a model.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/initial_weights.h"
#include "train/formats/safetensors.h"
#include "train/nn/named_tensors.h"

#include <span>
#include <string>
#include <vector>

namespace octavo_train {

class SpeechArchive;

// Returns the parts that are reinitialized when the vocabulary changes: decoder and joint, as in NeMo.
ReinitializedLayers speech_reinitialized_layers();

// Copies the tensors of a file into the parameters and buffers of `model`, which have the names that
// transformers uses. `path` names the file in messages. Dtypes are converted. If names or shapes differ,
// returns an error that lists every tensor that is missing, superfluous or of another shape, and changes
// nothing. On success, returns a line for the console.
Result<std::string> load_stored(const std::string& path, std::span<const StoredTensor> tensors,
                                const NamedTensors& model);

// Loads the weights of an archive at the start of a new run and returns lines for the console. If the archive
// has another vocabulary, speech_reinitialized_layers() keep their values, and a second line reports it.
Result<std::vector<std::string>> load_archive(const SpeechArchive& archive, const NamedTensors& model);

}  // namespace octavo_train
