// Reads and writes speech models in the formats of other programs: NeMo's `.nemo` archive and transformers'
// model folder. Opening a model reads its config and memory-maps its weights, without LibTorch.
//
//   auto archive = octavo_train::SpeechArchive::open("nvidia/parakeet-tdt-0.6b-v3");
//   if (archive.ok()) make_model(archive->settings());
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/nemo.h"
#include "train/formats/safetensors.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/features/feature_tables.h"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

class Tokenizer;

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

// The contents of a model's config. Settings that the config has no key for keep the defaults of
// SpeechModelSettings: transformers has no keys for the loss and for the dropout of predictor and joint.
struct SpeechConfig {
  SpeechModelSettings model;
  std::int64_t pad = 0;            // the padding token of short transcripts, for transformers
  std::vector<std::string> notes;  // one line per setting that Octavo's model does not follow
  FeatureSettings features = {};   // transformers stores these in a separate file
  // True for NeMo's hybrid of a transducer and CTC. The transducer is read; the CTC head is not.
  bool hybrid = false;
};

// Read a config. Error messages begin with `name`. Return an error that names the key if the model's
// architecture is not supported.
Result<SpeechConfig> read_nemo_config(std::string_view yaml, const std::string& name);
Result<SpeechConfig> read_transformers_config(std::string_view json, const std::string& name);

// Returns the text of transformers' config.json. `dtype` is the weights' dtype under torch's name.
Result<std::string> transformers_config(const SpeechConfig& config, std::string_view dtype);

class SpeechArchive {
 public:
  // Opens the model of a path or of a name of the Hugging Face hub: see find_speech_model().
  static Result<SpeechArchive> open(const std::string& name);

  [[nodiscard]] const std::string& path() const { return place_.path; }  // the archive or the folder
  [[nodiscard]] SpeechFiles kind() const { return place_.kind; }
  [[nodiscard]] const SpeechConfig& config() const { return config_; }
  [[nodiscard]] const SpeechModelSettings& settings() const { return config_.model; }
  [[nodiscard]] std::string_view config_text() const { return config_text_; }

  // Returns the tensors under transformers' names. A name that is not in the table of tensor_names.cc stays
  // as it is in the file. The bytes are valid during the lifetime of this object.
  [[nodiscard]] std::span<const StoredTensor> tensors() const { return tensors_.all(); }
  // Returns NeMo's window and filterbank, under NeMo's names. They are kept for writing.
  [[nodiscard]] std::span<const StoredTensor> preprocessor() const { return preprocessor_; }
  // Returns the settings of this model's features.
  [[nodiscard]] const FeatureSettings& features() const { return config_.features; }
  // Returns the values of NeMo's window and filterbank. The tables of a transformers model are empty; the
  // caller computes them from features().
  [[nodiscard]] Result<FeatureTables> feature_tables() const;
  // Returns the contents of the files besides config and weights, such as the tokenizer's, by file name.
  [[nodiscard]] Result<std::map<std::string, std::string>> other_files() const;

 private:
  SpeechArchive() = default;
  Status open_nemo();
  Status open_transformers();
  Status read_feature_file();  // of a transformers folder

  SpeechModelLocation place_;
  std::optional<NemoArchive> nemo_;
  std::optional<Safetensors> safetensors_;
  std::string config_text_;
  SpeechConfig config_;
  TensorList tensors_;
  std::vector<StoredTensor> preprocessor_;
};

// Reads the tokenizer that is stored with a model: the file that NeMo's `tokenizer.model_path` names, or
// tokenizer.model or tokenizer.json of a folder. Returns an error if the number of tokens differs from the
// model's vocabulary. Error messages advise to set `model.tokenizer.model`, which can name another file.
Result<Tokenizer> archive_tokenizer(const SpeechArchive& archive);

// Returns true if a file besides config and weights may be copied into an exported folder: it belongs to a
// tokenizer and is not executable code.
[[nodiscard]] bool is_tokenizer_file(std::string_view name);

// The next two functions translate between the two names of a tensor: NeMo's, used in a `.nemo` archive, and
// that of transformers, which the model here uses too. Returns the name in transformers, or nullopt if
// transformers has no such tensor.
[[nodiscard]] std::optional<std::string> transformers_name(std::string_view nemo);
// Returns the name in NeMo, or nullopt if NeMo has no such tensor. `joint_dropout` is the model's. NeMo
// numbers the joint network's modules, and dropout is one of them if it is not 0. So the last layer is
// joint.joint_net.2 with dropout, and joint.joint_net.1 without.
[[nodiscard]] std::optional<std::string> nemo_name(std::string_view transformers, double joint_dropout);

// Returns true for the tensors of NeMo's preprocessor, its window and its filterbank. Other model files do
// not contain them.
[[nodiscard]] bool is_preprocessor_name(std::string_view nemo);

// The functions below write weights, which have transformers' names as in a checkpoint. Each file is written
// under a temporary name in the same folder and renamed. `origin` is the archive that the model's training
// began with.

// Writes a `.nemo` archive. Its config, tokenizer and preprocessor are copied from `origin`, which must be a
// `.nemo` archive with the same tensors, because a copied config does not fit other sizes.
Status write_nemo_model(const std::string& path, const SpeechArchive& origin,
                        std::span<const TensorSource> weights);
// Writes config.json, model.safetensors, generation_config.json for a transducer, and the tokenizer's files
// of `origin` if it has them. A new folder is written under a temporary name and renamed. In an existing
// folder these files are replaced and others stay. Until all files are written the folder has no config.json,
// so that no program loads it as a model. If `features` is empty, the features of `origin` are written, or
// the defaults if `origin` is null. If `tokenizer` is null, the tokenizer of `origin` is copied. A different
// tokenizer replaces it, in transformers' format and in its own.
Status write_transformers_model(const std::string& folder, const SpeechModelSettings& model,
                                const SpeechArchive* origin, std::span<const TensorSource> weights,
                                std::optional<FeatureSettings> features = {},
                                const Tokenizer* tokenizer = nullptr);

// Writes a `.nemo` archive if `target` ends with `.nemo`, otherwise a transformers folder. A `.nemo` archive
// keeps the config of `origin` if that config fits the model. Otherwise its config is generated, and its
// window and filterbank are those of `origin` if it has the same features.
Status export_speech_model(std::span<const TensorSource> weights, const SpeechModelSettings& model,
                           const SpeechArchive* origin, const std::string& target,
                           std::optional<FeatureSettings> features = {},
                           const Tokenizer* tokenizer = nullptr);

}  // namespace octavo_train
