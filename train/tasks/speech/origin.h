// What a run's model is made of: the files that `model.name` names, if any, and the keys of the config. No
// LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/tokenizer.h"

#include <optional>

namespace octavo::train {

// The files that the model of a run begins with; none where its weights are random.
Result<std::optional<SpeechArchive>> open_speech_origin(const Settings& settings);

// Below, `origin` are the files, or null.

// The model's sizes. It has as many tokens as the tokenizer that the config names, if it names one.
Result<SpeechModelSettings> speech_model_of(const Settings& settings, const SpeechArchive* origin);

// The tokenizer that the config names, or that of the files.
Result<Tokenizer> open_speech_tokenizer(const Settings& settings, const SpeechArchive* origin);

// What recordings become for the model: as the files have it, or the standard, and as the config says
// otherwise.
Result<FeatureSettings> speech_features_of(const Settings& settings, const SpeechArchive* origin,
                                           const SpeechModelSettings& model);
// The files' own tables for such features; empty where they are for others, or there are none.
Result<FeatureTables> speech_tables_of(const FeatureSettings& features, const SpeechArchive* origin);

}  // namespace octavo::train
