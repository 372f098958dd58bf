// Defines the config keys of the speech model, of recordings, of the tokenizer and of the features, and
// combines the keys with the sizes of the models that have a name. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/checks.h"
#include "train/config/task_config.h"
#include "train/tasks/speech/config/settings.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// The name of a model whose sizes come from the config. Its weights are random.
inline constexpr std::string_view kFastConformer = "fastconformer";

std::vector<Key> speech_model_keys();
Status check_speech_model(const Config& config);
std::vector<Key> speech_input_keys();  // model.tokenizer and model.preprocessor
std::vector<Key> recording_keys();     // data
Status check_recordings(const Config& config);

// Returns true if `model.name: NAME` selects the task `speech`.
bool is_speech_model(std::string_view name);
// Returns true if a model.name is the path of a file or folder, rather than a model's name or a hub id.
bool is_model_path(std::string_view name);

// Returns the sizes of kFastConformer or of a released model, named with or without its owner (nvidia/…), or
// nullopt if the name is not one of these.
std::optional<SpeechModelSettings> known_speech_model(std::string_view name);

// Returns `model` with the config's keys applied.
SpeechModelSettings with_speech_keys(SpeechModelSettings model, const SpeechKeys& keys);

}  // namespace octavo_train
