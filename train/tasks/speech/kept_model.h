// The files that a checkpoint of a run on recordings contains besides weights and config: the tokenizer, and
// the settings of the model and its features. With them a checkpoint can transcribe, be exported and be
// evaluated after the files that the run began with are gone. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/model_settings.h"

#include <octavo/status.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace octavo::train {

inline constexpr std::string_view kKeptTokenizer = "tokenizer.model";
inline constexpr std::string_view kKeptModel = "model.json";

struct KeptModel {
  SpeechModelSettings model;
  FeatureSettings features;
};

// Returns the files for Task::kept_files(). `tokenizer` is the content of the tokenizer's file.
std::map<std::string, std::string> kept_files(const KeptModel& model, const std::string& tokenizer);

// Reads model.json of a checkpoint. Returns nothing if the checkpoint does not have it, for example because
// the run used generated clips.
Result<std::optional<KeptModel>> read_kept_model(const std::string& checkpoint);

}  // namespace octavo::train
