// NeMo's model_config.yaml for a model that no archive of NeMo describes: one that began here, or has another
// vocabulary, head or sizes than the archive that it began with.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/archive_keys.h"
#include "train/tasks/speech/tokenizer_export.h"

#include <octavo/status.h>

#include <span>
#include <string>
#include <vector>

namespace octavo::train {

// The keys that make the model, as archive_nemo.cc reads them.
std::vector<ForeignKey> nemo_model_keys(SpeechHead head);

// `files`: the names of the tokenizer's files in the archive, by what NeMo calls them. The text is JSON,
// which is YAML.
Result<std::string> nemo_config(const SpeechModelSettings& model, const FeatureSettings& features,
                                std::span<const std::string> pieces, const NamedFiles& files);

}  // namespace octavo::train
