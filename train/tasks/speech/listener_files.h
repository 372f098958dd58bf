// What a listener takes from files: the sizes of a model, its weights, its tokenizer and how its features are
// made. A checkpoint of recordings has all of it (kept_model.h). No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"
#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/feature_tables.h"
#include "train/tasks/speech/model_settings.h"
#include "train/tasks/speech/tokenizer.h"

#include <octavo/status.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

struct ListenerFiles {
  SpeechModelSettings model;
  FeatureSettings features;
  FeatureTables tables;  // an archive's; empty: made from the settings
  Tokenizer tokenizer;
  std::string weights_from;               // a path, for errors
  std::vector<std::string> notes;         // which checkpoint was taken, and what was not
  std::optional<SpeechArchive> archive;   // has the weights, or
  std::optional<Safetensors> checkpoint;  // this

  [[nodiscard]] std::span<const StoredTensor> weights() const {
    return archive ? archive->tensors() : checkpoint->tensors();
  }
};

// See Listener::open().
Result<ListenerFiles> open_listener_files(const std::string& name, const std::string& checkpoint);

}  // namespace octavo::train
