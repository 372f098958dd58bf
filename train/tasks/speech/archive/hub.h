// Finds the files of a model. `model.name` is a path, or a name of the Hugging Face hub whose files the hub's
// own tools have downloaded. Nothing is downloaded here.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <string>

namespace octavo_train {

enum class SpeechFiles : std::uint8_t {
  nemo,          // a `.nemo` archive
  transformers,  // a folder with config.json and model.safetensors
};

struct SpeechModelLocation {
  std::string path;  // the archive or the folder
  SpeechFiles kind = SpeechFiles::nemo;
  // How to download the model again, to be appended to error messages. Empty if the model is not in the hub's
  // cache.
  std::string advice = {};
};

// Finds a `.nemo` file, a folder, or `ORGANIZATION/NAME` in the cache of the hub. If a folder has both kinds
// of files, the `.nemo` archive is used, because only it has the settings of the loss and the tokenizer.
// Error messages name what was searched for and how to download it.
Result<SpeechModelLocation> find_speech_model(const std::string& name);

// Returns the folder of the hub's cache by the rules of huggingface_hub: HF_HUB_CACHE, HF_HOME/hub, or a
// folder in the user's cache.
[[nodiscard]] std::string hub_cache();

}  // namespace octavo_train
