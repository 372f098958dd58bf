// Exports a trained model, either with the config of the archive that training began with or with a new
// config. See archive.h.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/byte_order.h"
#include "train/io/checksums.h"
#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/archive_tokenizer.h"
#include "train/tasks/speech/names.h"
#include "train/tasks/speech/nemo_config.h"
#include "train/tasks/speech/tokenizer_export.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

namespace octavo_train {
namespace {

// Checks the parts of a NeMo config that the tensors' names and shapes do not determine.
Status check_same_head(const SpeechArchive& origin, const SpeechModelSettings& model) {
  if (has_same_head(origin.settings(), model)) return {};
  return Status::invalid("the head or the durations of the model are not those in the config of " +
                         origin.path() +
                         ", which a .nemo archive would keep; write a folder of transformers");
}

// Returns true if NeMo's config of `origin` describes the model exactly and can be kept unchanged.
bool keeps_config(const SpeechArchive& origin, const SpeechModelSettings& model,
                  std::span<const TensorSource> weights, const FeatureSettings& features,
                  const Tokenizer& tokenizer) {
  if (origin.kind() != SpeechFiles::nemo || origin.config().hybrid) return false;
  if (!check_same_head(origin, model).ok()) return false;
  if (!check_same_tensors(origin, weights).ok() || !same_features(origin.features(), features)) return false;
  const auto first = archive_tokenizer(origin);
  return first.ok() && first->bytes() == tokenizer.bytes();
}

// Returns the window and the filterbank, which are part of NeMo's state dict.
std::vector<TensorSource> table_sources(const FeatureSettings& features, const SpeechArchive* origin) {
  FeatureTables tables;
  if (origin != nullptr && same_features(origin->features(), features)) {
    if (auto stored = origin->feature_tables(); stored.ok()) tables = std::move(*stored);
  }
  FeatureTables made = make_feature_tables(features);
  if (tables.window.empty()) tables.window = std::move(made.window);
  if (tables.filters.empty()) tables.filters = std::move(made.filters);
  const auto source = [](const std::string& name, std::vector<std::int64_t> shape,
                         std::vector<float> values) {
    auto kept = std::make_shared<std::vector<float>>(std::move(values));
    return TensorSource{"preprocessor.featurizer." + name, "F32", std::move(shape),
                        [kept]() -> Result<Bytes> { return std::as_bytes(std::span<const float>(*kept)); }};
  };
  return {source("window", {features.window()}, std::move(tables.window)),
          source("fb", {1, features.features, features.bins()}, std::move(tables.filters))};
}

std::string hash_of(const std::string& bytes) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(bytes)));
  return hasher.hex();
}

// Returns the suffix of a file's name with its dot, or an empty text. A suffix begins with a letter, so the
// folder parakeet-0.6b has none.
std::string_view file_suffix(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  const std::size_t dot = name.rfind('.');
  if (dot == 0 || dot == std::string_view::npos || dot + 1 == name.size()) return {};
  const char first = name[dot + 1];
  const bool letter = (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z');
  return letter ? name.substr(dot) : std::string_view();
}

}  // namespace

Status write_made_nemo_model(const std::string& path, const SpeechModelSettings& model,
                             const FeatureSettings& features, const Tokenizer& tokenizer,
                             const SpeechArchive* origin, std::span<const TensorSource> weights) {
  if (tokenizer.size() != model.vocabulary) {
    return Status::invalid(path + ": " + tokenizer.name() + " has " + std::to_string(tokenizer.size()) +
                           " tokens, but the model has " + std::to_string(model.vocabulary));
  }
  ASSIGN_OR_RETURN(auto contents, nemo_tokenizer_files(tokenizer));
  constexpr std::array<std::pair<const char*, const char*>, 3> kKeys = {
      {{"model_path", "tokenizer.model"},
       {"vocab_path", "vocab.txt"},
       {"spe_tokenizer_vocab", "tokenizer.vocab"}}};
  NamedFiles names, files;
  for (const auto& [key, name] : kKeys) {
    std::string& bytes = contents.at(name);
    const std::string inside = hash_of(bytes) + '_' + name;
    names[key] = inside;
    files[inside] = std::move(bytes);
  }
  const std::vector<std::string> pieces = pieces_of(tokenizer);
  const Result<std::string> config = nemo_config(model, features, pieces, names);
  if (!config.ok()) return placed(path, config.status());
  std::vector<TensorSource> sources = table_sources(features, origin);
  for (const TensorSource& source : weights) {
    sources.push_back(source);
    if (auto name = nemo_name(source.name, model.joint_dropout)) sources.back().name = std::move(*name);
  }
  return write_nemo(path, *config, sources, files);
}

Status export_speech_model(std::span<const TensorSource> weights, const SpeechModelSettings& model,
                           const SpeechArchive* origin, const std::string& target,
                           std::optional<FeatureSettings> features, const Tokenizer* tokenizer) {
  if (const std::string suffix(file_suffix(target));
      !suffix.empty() && suffix != ".nemo" && !path_exists(target)) {
    return Status::invalid(
        target + ": models are not written as " + suffix +
        "; expected a name that ends with .nemo, which is an archive for NeMo, or the name "
        "of a folder for transformers, without a suffix");
  }
  if (!target.ends_with(".nemo"))
    return write_transformers_model(target, model, origin, weights, features, tokenizer);
  if (tokenizer != nullptr) {
    FeatureSettings now = features.value_or(origin != nullptr ? origin->features() : FeatureSettings());
    now.features = model.mel_bands;
    if (origin == nullptr || !keeps_config(*origin, model, weights, now, *tokenizer))
      return write_made_nemo_model(target, model, now, *tokenizer, origin, weights);
  }
  if (origin == nullptr) {
    return Status::invalid(target + ": a .nemo archive needs a tokenizer, but there is none: the model " +
                           "began with random weights; write a folder of transformers");
  }
  if (origin->kind() == SpeechFiles::nemo) {
    if (Status bad = check_same_head(*origin, model); !bad.ok()) return placed(target, bad);
  }
  return write_nemo_model(target, *origin, weights);
}

}  // namespace octavo_train
