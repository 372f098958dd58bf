// What a checkpoint of recordings keeps besides weights and config, so that it can be heard, exported and
// evaluated when the files that the run began with are gone: the tokenizer, and the sizes of the model with
// those of its features. No LibTorch.
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

// See Task::kept_files(). `tokenizer`: its bytes.
std::map<std::string, std::string> kept_files(const KeptModel& model, const std::string& tokenizer);

// None: the checkpoint has none, as of a run with a generator.
Result<std::optional<KeptModel>> read_kept_model(const std::string& checkpoint);

}  // namespace octavo::train
