// Opens the files of a model and reads the tokenizer that is among them; see archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/archive.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/formats/tensor_list.h"
#include "train/io/files.h"
#include "train/io/little_endian.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/archive/foreign_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kNemoConfig = "model_config.yaml";
constexpr std::string_view kNemoWeights = "model_weights.ckpt";
constexpr std::string_view kCtcOfHybrid = "ctc_decoder.";
constexpr std::uint64_t kConfigLimit = 1 << 20;
constexpr std::uint64_t kFileLimit = 64 << 20;  // bytes; a tokenizer has a few megabytes
constexpr const char* kTokenizerAdvice = "; name one with model.tokenizer.model: PATH";

// Reads `count` values of NeMo's window or filterbank. A table that is not in fp32 is left empty, because a
// table computed from the settings is more precise.
Status read_table(const StoredTensor& tensor, std::int64_t count, const std::string& name,
                  std::vector<float>& out) {
  if (tensor.dtype != "F32") return {};
  const auto size = static_cast<std::size_t>(count);
  if (tensor.bytes.size() != size * sizeof(float)) {
    return invalid_error("{}: {} is {}, expected {} numbers, as the settings of its preprocessor say", name,
                         tensor.name, shape_text(tensor.shape), size);
  }
  out.resize(size);
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return {};
}

// Returns the name of the tokenizer file that NeMo's config refers to.
Result<std::string> nemo_tokenizer(const SpeechArchive& archive, const NamedFiles& files) {
  constexpr std::string_view kInside = "nemo:";
  const Source source{archive.path() + ": model_config.yaml"};
  ASSIGN_OR_RETURN(const YamlNode root, read_yaml(archive.config_text(), source));
  const std::string type = text_at(root, "tokenizer.type");
  if (!type.empty() && type != "bpe") {
    return unsupported_error("{}: tokenizer.type: got {}, expected bpe, a SentencePiece model{}", source.name,
                             type, kTokenizerAdvice);
  }
  std::string name = text_at(root, "tokenizer.model_path");
  if (name.starts_with(kInside)) name.erase(0, kInside.size());
  if (files.contains(name)) return name;
  for (const auto& [each, bytes] : files) {
    if (each.ends_with("tokenizer.model")) return each;
  }
  return invalid_error("{}: tokenizer.model_path: {}{}", source.name,
                       name.empty() ? "not given" : name + " is not in the archive", kTokenizerAdvice);
}

Result<std::string> folder_tokenizer(const SpeechArchive& archive, const NamedFiles& files) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (files.contains(name)) return std::string(name);
  }
  return invalid_error("{}: the folder has no tokenizer.model and no tokenizer.json{}", archive.path(),
                       kTokenizerAdvice);
}

}  // namespace

bool is_tokenizer_file(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEnds = {".json", ".model", ".txt", ".vocab"};
  return is_plain_name(name) && name != "config.json" && !name.ends_with(".index.json") &&
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

Status SpeechArchive::open_nemo() {
  ASSIGN_OR_RETURN(nemo_, NemoArchive::open(place_.path));
  config_text_ = nemo_->config();
  ASSIGN_OR_RETURN(config_, read_nemo_config(config_text_, fmt::format("{}: {}", place_.path, kNemoConfig)));
  std::vector<StoredTensor> tensors;
  for (const StoredTensor& tensor : nemo_->weights().tensors()) {
    if (is_preprocessor_name(tensor.name)) {
      preprocessor_.push_back(tensor);
      continue;
    }
    if (config_.hybrid && tensor.name.starts_with(kCtcOfHybrid)) continue;
    tensors.push_back(tensor);
    if (auto name = transformers_name(tensor.name)) tensors.back().name = std::move(*name);
  }
  // TensorList::of() fails if a renamed tensor gets the name of a tensor that is not in the table.
  ASSIGN_OR_RETURN(tensors_, with_context(place_.path, TensorList::of(std::move(tensors))));
  return {};
}

Status SpeechArchive::read_feature_file() {
  config_.features.features = config_.model.mel_bands;
  for (const FeatureFile& file : kFeatureFiles) {
    const std::string path = place_.path + '/' + file.name;
    if (!path_exists(path)) continue;
    ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kConfigLimit));
    ASSIGN_OR_RETURN(config_.features, read_transformers_features(text, file.prefix, path));
    if (config_.features.features == config_.model.mel_bands) return {};
    return invalid_error(
        "{}: feature_size is {}, but num_mel_bins of config.json is {}; they must be the same", path,
        config_.features.features, config_.model.mel_bands);
  }
  return {};
}

Result<FeatureTables> SpeechArchive::feature_tables() const {
  FeatureTables out;
  const FeatureSettings& settings = config_.features;
  for (const StoredTensor& tensor : preprocessor_) {
    if (tensor.name.ends_with(".window"))
      RETURN_IF_ERROR(read_table(tensor, settings.window(), place_.path, out.window));
    if (tensor.name.ends_with(".fb"))
      RETURN_IF_ERROR(read_table(tensor, settings.features * settings.bins(), place_.path, out.filters));
  }
  return out;
}

Status SpeechArchive::open_transformers() {
  const std::string config_path = place_.path + "/config.json";
  ASSIGN_OR_RETURN(config_text_, read_text_file(config_path, kConfigLimit));
  ASSIGN_OR_RETURN(config_, read_transformers_config(config_text_, config_path));
  RETURN_IF_ERROR(read_feature_file());
  Result<Safetensors> opened = Safetensors::open(place_.path + "/model.safetensors");
  if (!opened.ok()) {
    if (!read_text_file(place_.path + "/model.safetensors.index.json", kFileLimit).ok())
      return opened.status();
    return Status::unsupported(place_.path +
                               ": its weights are in several files, expected model.safetensors; load it with "
                               "transformers and save it with a larger max_shard_size");
  }
  safetensors_ = std::move(*opened);
  ASSIGN_OR_RETURN(tensors_,
                   TensorList::of({safetensors_->tensors().begin(), safetensors_->tensors().end()}));
  return {};
}

Result<SpeechArchive> SpeechArchive::open(const std::string& name) {
  SpeechArchive archive;
  ASSIGN_OR_RETURN(archive.place_, find_speech_model(name));
  const bool nemo = archive.place_.kind == SpeechFiles::nemo;
  const Status status = nemo ? archive.open_nemo() : archive.open_transformers();
  if (!status.ok()) return Status(status.code(), status.message() + archive.place_.advice);
  return archive;
}

Result<std::map<std::string, std::string>> SpeechArchive::other_files() const {
  std::map<std::string, std::string> files;
  if (nemo_) {
    for (const TarEntry& entry : nemo_->files()) {
      if (entry.name != kNemoConfig && entry.name != kNemoWeights) files[entry.name] = as_text(entry.bytes);
    }
    return files;
  }
  ASSIGN_OR_RETURN(const auto names, list_folder(place_.path));
  for (const std::string& name : names) {
    if (!is_tokenizer_file(name)) continue;
    ASSIGN_OR_RETURN(files[name], read_text_file(place_.path + '/' + name, kFileLimit));
  }
  return files;
}

Result<Tokenizer> archive_tokenizer(const SpeechArchive& archive) {
  ASSIGN_OR_RETURN(auto files, archive.other_files());
  ASSIGN_OR_RETURN(const std::string name, archive.kind() == SpeechFiles::nemo
                                               ? nemo_tokenizer(archive, files)
                                               : folder_tokenizer(archive, files));
  Result<Tokenizer> out = Tokenizer::from_bytes(std::move(files.at(name)), archive.path() + ": " + name);
  if (!out.ok() || out->size() == archive.settings().vocabulary) return out;
  return invalid_error("{} has {} tokens, but the model has {}{}", out->name(), out->size(),
                       archive.settings().vocabulary, kTokenizerAdvice);
}

}  // namespace octavo_train
