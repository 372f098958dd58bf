// The keys of the speech model, the models that are known by name, and what both together give.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/task_config.h"
#include "train/tasks/speech/settings.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// A model whose sizes are keys of the config; it has random weights.
inline constexpr std::string_view kFastConformer = "fastconformer";

std::vector<Key> speech_model_keys();
Status check_speech_model(const Config& config);

// `model.name: NAME` says that the task is this one.
bool is_speech_model(std::string_view name);
// Whether a model.name is a file or a folder, and not a name or a hub id.
bool is_model_path(std::string_view name);

// The sizes of kFastConformer and of released models, with or without their owner (nvidia/…); none where a
// name is not known.
std::optional<SpeechModelSettings> known_speech_model(std::string_view name);

// `model` with what a config says otherwise.
SpeechModelSettings with_speech_keys(SpeechModelSettings model, const SpeechKeys& keys);

}  // namespace octavo::train
