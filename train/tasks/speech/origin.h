// What a run's model is made of: the files that `model.name` names, if any, and the keys of the config. No
// LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/speech/archive.h"

#include <optional>

namespace octavo::train {

// The files that the model of a run begins with; none where its weights are random.
Result<std::optional<SpeechArchive>> open_speech_origin(const Settings& settings);

// The model's sizes. `origin`: the files, or null.
Result<SpeechModelSettings> speech_model_of(const Settings& settings, const SpeechArchive* origin);

// What recordings become for it: as `origin` has it, or the standard.
FeatureSettings speech_features_of(const SpeechModelSettings& model, const SpeechArchive* origin);

}  // namespace octavo::train
