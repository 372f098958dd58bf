// The files that a checkpoint of a run on recordings contains besides weights and config: the tokenizer, and
// the settings of the model and its features. With them a checkpoint can transcribe, be exported and be
// evaluated after the files that the run began with are gone. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/speech/config/feature_settings.h"
#include "train/tasks/speech/config/model_settings.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace octavo_train {

inline constexpr std::string_view kKeptTokenizer = "tokenizer.model";
inline constexpr std::string_view kKeptModel = "model.json";

struct BundledModel {
  SpeechModelSettings model;
  FeatureSettings features;
};

// Returns the files for TaskModel::extra_files. `tokenizer` is the content of the tokenizer's file.
std::map<std::string, std::string> checkpoint_extra_files(const BundledModel& model,
                                                          const std::string& tokenizer);

// Reads model.json of a checkpoint. Returns nothing if the checkpoint does not have it, for example because
// the run used generated clips.
Result<std::optional<BundledModel>> read_kept_model(const std::string& checkpoint);

}  // namespace octavo_train
