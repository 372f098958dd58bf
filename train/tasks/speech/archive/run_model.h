// Determines a run's model, tokenizer and features from the config and from the files that `model.name`
// names, if any. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/config/feature_settings.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <optional>

namespace octavo_train {

// Opens the files from which the run loads its first weights. Returns nullopt if the first weights are
// random.
Result<std::optional<SpeechArchive>> open_speech_origin(const Settings& settings);

// Below, `origin` is the result of open_speech_origin(), or null.

// Returns the model's settings. If the config names a tokenizer, the vocabulary has the size of that
// tokenizer.
Result<SpeechModelSettings> speech_model_of(const Settings& settings, const SpeechArchive* origin);

// Opens the tokenizer that the config names, else the tokenizer of `origin`.
Result<Tokenizer> open_speech_tokenizer(const Settings& settings, const SpeechArchive* origin);

// Returns the settings of the features: those of `origin`, or the defaults if it is null, with the config's
// keys applied.
Result<FeatureSettings> speech_features_of(const Settings& settings, const SpeechArchive* origin,
                                           const SpeechModelSettings& model);
// Returns the feature tables of `origin`, or empty ones if `origin` is null or has other features.
Result<FeatureTables> speech_tables_of(const FeatureSettings& features, const SpeechArchive* origin);

}  // namespace octavo_train
