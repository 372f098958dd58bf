// Where the files of a model are: `model.name` is a path, or a name of the Hugging Face hub that its own
// tools have downloaded. Nothing is downloaded here.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <string>

namespace octavo::train {

enum class SpeechFiles : std::uint8_t {
  nemo,          // a `.nemo` archive
  transformers,  // a folder with config.json and model.safetensors
};

struct SpeechPlace {
  std::string path;  // of the archive or of the folder
  SpeechFiles kind = SpeechFiles::nemo;
  std::string advice =
      {};  // of a model in the hub's cache: how it is downloaded again, for the end of errors
};

// A `.nemo` file, a folder, or `ORGANIZATION/NAME` in the cache of the hub. Of a folder with both kinds the
// archive is taken: it alone has the loss and the tokenizer. Errors say what was looked for and how to get
// it.
Result<SpeechPlace> find_speech_model(const std::string& name);

// The folder of the hub's cache, as huggingface_hub finds it: HF_HUB_CACHE, HF_HOME/hub, or in the user's
// cache.
[[nodiscard]] std::string hub_cache();

}  // namespace octavo::train
