// Opens the files of a model; see archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/byte_order.h"
#include "train/io/file_descriptor.h"
#include "train/io/folders.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/archive_features.h"
#include "train/tasks/speech/names.h"

#include <algorithm>
#include <array>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kNemoConfig = "model_config.yaml";
constexpr std::string_view kNemoWeights = "model_weights.ckpt";
constexpr std::string_view kCtcOfHybrid = "ctc_decoder.";
constexpr std::uint64_t kConfigLimit = 1 << 20;
constexpr std::uint64_t kFileLimit = 64 << 20;  // bytes; a tokenizer has a few megabytes

}  // namespace

bool is_tokenizer_file(std::string_view name) {
  constexpr std::array<std::string_view, 4> kEnds = {".json", ".model", ".txt", ".vocab"};
  return is_plain_name(name) && name != "config.json" && !name.ends_with(".index.json") &&
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

Status SpeechArchive::open_nemo() {
  Result<NemoArchive> opened = NemoArchive::open(place_.path);
  if (!opened.ok()) return opened.status();
  config_text_ = opened->config();
  Result<SpeechConfig> config = read_nemo_config(config_text_, place_.path + ": " + std::string(kNemoConfig));
  if (!config.ok()) return config.status();
  config_ = std::move(*config);
  std::vector<StoredTensor> tensors;
  for (const StoredTensor& tensor : opened->weights().tensors()) {
    if (is_preprocessor_name(tensor.name)) {
      preprocessor_.push_back(tensor);
      continue;
    }
    if (config_.hybrid && tensor.name.starts_with(kCtcOfHybrid)) continue;
    tensors.push_back(tensor);
    if (auto name = transformers_name(tensor.name)) tensors.back().name = std::move(*name);
  }
  // TensorList::of() fails if a renamed tensor gets the name of a tensor that is not in the table.
  Result<TensorList> renamed = TensorList::of(std::move(tensors));
  if (!renamed.ok()) return placed(place_.path, renamed.status());
  tensors_ = std::move(*renamed);
  nemo_ = std::move(*opened);
  return {};
}

Status SpeechArchive::read_feature_file() {
  config_.features.features = config_.model.mel_bands;
  for (const FeatureFile& file : kFeatureFiles) {
    const std::string path = place_.path + '/' + std::string(file.name);
    if (!path_exists(path)) continue;
    const Result<std::string> text = read_text_file(path, kConfigLimit);
    if (!text.ok()) return text.status();
    const Result<FeatureSettings> found = read_transformers_features(*text, file.prefix, path);
    if (!found.ok()) return found.status();
    if (found->features != config_.model.mel_bands) {
      return Status::invalid(path + ": feature_size is " + std::to_string(found->features) +
                             ", but num_mel_bins of config.json is " +
                             std::to_string(config_.model.mel_bands) + "; they must be the same");
    }
    config_.features = *found;
    return {};
  }
  return {};
}

Result<FeatureTables> SpeechArchive::feature_tables() const {
  return stored_feature_tables(preprocessor_, config_.features, place_.path);
}

Status SpeechArchive::open_transformers() {
  const std::string config_path = place_.path + "/config.json";
  Result<std::string> text = read_text_file(config_path, kConfigLimit);
  if (!text.ok()) return text.status();
  config_text_ = std::move(*text);
  Result<SpeechConfig> config = read_transformers_config(config_text_, config_path);
  if (!config.ok()) return config.status();
  config_ = std::move(*config);
  RETURN_IF_ERROR(read_feature_file());
  Result<Safetensors> opened = Safetensors::open(place_.path + "/model.safetensors");
  if (!opened.ok() && read_text_file(place_.path + "/model.safetensors.index.json", kFileLimit).ok()) {
    return Status::unsupported(place_.path +
                               ": its weights are in several files, expected model.safetensors; load it with "
                               "transformers and save it with a larger max_shard_size");
  }
  if (!opened.ok()) return opened.status();
  Result<TensorList> all = TensorList::of({opened->tensors().begin(), opened->tensors().end()});
  if (!all.ok()) return all.status();
  tensors_ = std::move(*all);
  safetensors_ = std::move(*opened);
  return {};
}

Result<SpeechArchive> SpeechArchive::open(const std::string& name) {
  Result<SpeechModelLocation> place = find_speech_model(name);
  if (!place.ok()) return place.status();
  SpeechArchive archive;
  archive.place_ = std::move(*place);
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
    Result<std::string> text = read_text_file(place_.path + '/' + name, kFileLimit);
    if (!text.ok()) return text.status();
    files[name] = std::move(*text);
  }
  return files;
}

}  // namespace octavo_train
