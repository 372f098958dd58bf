// A speech model in files of other programs: NeMo's `.nemo` and transformers' folder. Opening one reads its
// config and maps its weights, without LibTorch; writing one puts weights into the same kinds of files.
//
//   auto archive = octavo::train::SpeechArchive::open("nvidia/parakeet-tdt-0.6b-v3");
//   if (archive.ok()) make_model(archive->settings());
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/nemo.h"
#include "train/formats/safetensors.h"
#include "train/tasks/speech/feature_tables.h"
#include "train/tasks/speech/hub.h"
#include "train/tasks/speech/model_settings.h"

#include <octavo/status.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

class Tokenizer;

// What a config says. Keys that it has not keep the standard of SpeechModelSettings: transformers has none
// for the loss and for the dropout of predictor and joint.
struct SpeechConfig {
  SpeechModelSettings model;
  std::int64_t pad = 0;            // the token that fills short transcripts up, for transformers
  std::vector<std::string> notes;  // a line for each thing that the model here does otherwise
  FeatureSettings features = {};   // of recordings; transformers has them in a file of their own
  // NeMo's hybrid of a transducer and CTC. The transducer is read; the CTC head is not.
  bool hybrid = false;
};

// `name` is what errors begin with. A model that is not built like the one here is an error that names the
// key.
Result<SpeechConfig> read_nemo_config(std::string_view yaml, const std::string& name);
Result<SpeechConfig> read_transformers_config(std::string_view json, const std::string& name);

// The other way, with the weights' dtype as torch calls it.
Result<std::string> transformers_config(const SpeechConfig& config, std::string_view dtype);

class SpeechArchive {
 public:
  // A path or a name of the hub: hub.h.
  static Result<SpeechArchive> open(const std::string& name);

  [[nodiscard]] const std::string& path() const { return place_.path; }  // of the archive or the folder
  [[nodiscard]] SpeechFiles kind() const { return place_.kind; }
  [[nodiscard]] const SpeechConfig& config() const { return config_; }
  [[nodiscard]] const SpeechModelSettings& settings() const { return config_.model; }
  [[nodiscard]] std::string_view config_text() const { return config_text_; }

  // Under transformers' names; a name that the table of names.h has not is as in the file. The bytes live as
  // long as this.
  [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_.all(); }
  // NeMo's window and filterbank, under NeMo's names: kept for writing.
  [[nodiscard]] std::span<const StoredTensor> preprocessor() const { return preprocessor_; }
  // What recordings become for this model, and NeMo's window and filterbank as numbers; of transformers the
  // tables are empty, to be made from the settings.
  [[nodiscard]] const FeatureSettings& features() const { return config_.features; }
  [[nodiscard]] Result<FeatureTables> feature_tables() const;
  // The files besides config and weights, such as the tokenizer's, by name.
  [[nodiscard]] Result<std::map<std::string, std::string>> other_files() const;

 private:
  SpeechArchive() = default;
  Status open_nemo();
  Status open_transformers();
  Status read_feature_file();  // transformers'

  SpeechPlace place_;
  std::optional<NemoArchive> nemo_;
  std::optional<Safetensors> safetensors_;
  std::string config_text_;
  SpeechConfig config_;
  TensorList tensors_;
  std::vector<StoredTensor> preprocessor_;
};

// Whether a file besides config and weights belongs into a folder: a tokenizer's, nothing that could be run.
[[nodiscard]] bool is_tokenizer_file(std::string_view name);

// Weights under transformers' names, as a checkpoint has them, into files; each is written beside its place
// and renamed. `origin` is the archive that the model began with.

// That the weights have the tensors of `origin` and no others: its config and tokenizer fit them.
Status check_same_tensors(const SpeechArchive& origin, std::span<const TensorSource> weights);

// NeMo's config, tokenizer and preprocessor come from `origin`, which must be a `.nemo` archive with the same
// tensors: a config for other sizes cannot be made up.
Status write_nemo_model(const std::string& path, const SpeechArchive& origin,
                        std::span<const TensorSource> weights);
// Writes config.json, model.safetensors, generation_config.json for a transducer, and the tokenizer's files
// of `origin` if it has them. A new folder is written under a temporary name and renamed. In an existing
// folder these files are replaced and others stay; until all are written it has no config.json, so that no
// program takes it for a model. `features`, none: as `origin` has them, or the standard ones. `tokenizer`,
// null: that of `origin`; another one takes its place, in transformers' format and its own.
Status write_transformers_model(const std::string& folder, const SpeechModelSettings& model,
                                const SpeechArchive* origin, std::span<const TensorSource> weights,
                                std::optional<FeatureSettings> features = {},
                                const Tokenizer* tokenizer = nullptr);

// An archive whose config is made from the settings: for a model that is not that of any archive. The window
// and the filterbank are those of `origin`, which may be null, if it has the same features.
Status write_made_nemo_model(const std::string& path, const SpeechModelSettings& model,
                             const FeatureSettings& features, const Tokenizer& tokenizer,
                             const SpeechArchive* origin, std::span<const TensorSource> weights);

// One of them: `target` ends with `.nemo`, or is a folder. A `.nemo` keeps the config of `origin` where that
// fits.
Status export_speech_model(std::span<const TensorSource> weights, const SpeechModelSettings& model,
                           const SpeechArchive* origin, const std::string& target,
                           std::optional<FeatureSettings> features = {},
                           const Tokenizer* tokenizer = nullptr);

}  // namespace octavo::train
