// Determines a run's model, tokenizer and features: from the config and the files that `model.name` names, or
// from the files that a checkpoint of a run on recordings contains besides weights and config. With the
// latter a checkpoint can transcribe, be exported and be evaluated after the files that the run began with
// are gone. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <optional>

namespace octavo_train {

// Opens the files from which the run loads its first weights. Returns nullopt if the first weights are
// random.
Result<std::optional<SpeechArchive>> open_pretrained_archive(const Settings& settings);

// Below, `origin` is the result of open_pretrained_archive(), or null.

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

inline constexpr const char *kBundledTokenizer = "tokenizer.model", *kKeptModel = "model.json";

struct BundledModel {
  SpeechModelSettings model;
  FeatureSettings features;
  friend bool operator==(const BundledModel&, const BundledModel&) = default;
};

// Returns the files for Task::checkpoint_extra_files(). `tokenizer` is the content of the tokenizer's file.
NamedFiles checkpoint_extra_files(const BundledModel& model, const std::string& tokenizer);

// Reads model.json of a checkpoint. Returns nothing if the checkpoint does not have it, for example because
// the run used generated clips.
Result<std::optional<BundledModel>> read_bundled_model(const std::string& checkpoint);

}  // namespace octavo_train
