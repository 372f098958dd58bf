// Writes NeMo's model_config.yaml for a model that no NeMo archive describes: a model that was first trained
// here, or whose vocabulary, head or sizes differ from those of the archive that its training started from.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/config_keys.h"
#include "train/tasks/speech/tokenizer/tokenizer_export.h"

#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// Returns the keys that define the model, in the form in which archive_nemo.cc reads them.
std::vector<ExternalConfigKey> nemo_model_keys(SpeechHead head);

// Returns the text of the config, which is JSON and therefore valid YAML. `files` maps NeMo's keys for the
// tokenizer's files to their names in the archive.
Result<std::string> nemo_config(const SpeechModelSettings& model, const FeatureSettings& features,
                                std::span<const std::string> pieces, const NamedFiles& files);

}  // namespace octavo_train
