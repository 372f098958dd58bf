// Reads from files what a Recognizer needs: the model's sizes, its weights, its tokenizer and its feature
// settings. A checkpoint of a run on recordings contains all of them (bundled_model.h). Does not use
// LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/features/feature_tables.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

struct RecognizerFiles {
  SpeechModelSettings model;
  FeatureSettings features;
  FeatureTables tables;  // from the archive; empty: computed from the settings
  Tokenizer tokenizer;
  std::string weights_from;               // a path, for error messages
  std::vector<std::string> notes;         // which checkpoint was chosen, and which were skipped
  std::optional<SpeechArchive> archive;   // contains the weights if it is set
  std::optional<Safetensors> checkpoint;  // contains the weights otherwise

  [[nodiscard]] std::span<const StoredTensor> weights() const {
    return archive ? archive->tensors() : checkpoint->tensors();
  }
};

// Opens the files of `name`. See Recognizer::open() for both arguments.
Result<RecognizerFiles> open_recognizer_files(const std::string& name, const std::string& checkpoint);

}  // namespace octavo_train
