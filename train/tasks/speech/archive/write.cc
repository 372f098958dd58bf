// Writes a model in NeMo's and transformers' formats, either with the config of the archive that training
// began with or with a new config. See archive.h.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/formats/tensor_list.h"
#include "train/io/checksums.h"
#include "train/io/files.h"
#include "train/io/little_endian.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/foreign_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kNamed = 20;  // the most tensors that an error message names

TensorSource source_of(const StoredTensor& tensor) {
  return {tensor.name, tensor.dtype, tensor.shape,
          [bytes = tensor.bytes]() -> Result<Bytes> { return bytes; }};
}

std::string torch_dtype(std::span<const TensorSource> weights) {
  for (const TensorSource& source : weights) {
    if (source.dtype == "BF16") return "bfloat16";
    if (source.dtype == "F16") return "float16";
    if (source.dtype == "F32") return "float32";
  }
  return "float32";
}

// The contents of a transformers folder.
struct FolderFiles {
  std::string config;
  NamedFiles others;
  std::span<const TensorSource> weights;

  [[nodiscard]] Status write(const std::string& folder) const {
    RETURN_IF_ERROR(write_safetensors(folder + "/model.safetensors", weights, {{"format", "pt"}}));
    for (const auto& [name, text] : others) {
      if (!is_tokenizer_file(name)) continue;
      RETURN_IF_ERROR(write_text_file(folder + '/' + name, text));
    }
    // config.json is written last, because a folder without it is not a model.
    return write_text_file(folder + "/config.json", config);
  }
};

// Adds the file with the feature settings. The files of an existing transformers folder are kept if they
// describe the same features.
Status add_feature_file(FolderFiles& files, const SpeechArchive* origin,
                        std::optional<FeatureSettings> features, std::int64_t bands) {
  const FeatureSettings first = origin != nullptr ? origin->features() : FeatureSettings();
  FeatureSettings now = features.value_or(first);
  now.features = bands;
  const auto has = [&](const FeatureFile& file) { return files.others.contains(file.name); };
  if (origin != nullptr && std::ranges::any_of(kFeatureFiles, has) && same_features(first, now)) return {};
  for (const FeatureFile& file : kFeatureFiles) files.others.erase(file.name);
  ASSIGN_OR_RETURN(files.others[kFeatureFiles[0].name], transformers_features(now));
  return {};
}

bool has_tokenizer(const SpeechArchive& archive, const Tokenizer& tokenizer) {
  const auto first = archive_tokenizer(archive);
  return first.ok() && first->bytes() == tokenizer.bytes();
}

constexpr const char *kGeneration = "generation_config.json", *kProcessor = "processor_config.json";

// Replaces the files of another tokenizer. For a tokenizer that transformers cannot read, tokenizer.model
// alone is written.
Status put_tokenizer(FolderFiles& files, const Tokenizer& tokenizer, SpeechHead head, std::int64_t pad) {
  auto made = transformers_tokenizer_files(tokenizer, head, pad);
  if (!made.ok() && made.status().code() == StatusCode::unsupported)
    made = NamedFiles{{"tokenizer.model", tokenizer.bytes()}};
  ASSIGN_OR_RETURN(files.others, std::move(made));
  return {};
}

// Returns the text of transformers' generation_config.json. A transducer begins with blank. The outputs after
// the vocabulary are TDT's durations, not tokens, so they are suppressed. transformers pads the finished rows
// of a batch only if there is an end token, and otherwise adds tokens to them. The end token here is the
// number after blank, which is never generated.
std::string generation_config(const SpeechModelSettings& model, std::int64_t pad) {
  Json out = {
      {"decoder_start_token_id", model.blank()}, {"eos_token_id", model.blank() + 1}, {"pad_token_id", pad}};
  if (model.head == SpeechHead::tdt) {
    for (std::int64_t i = model.vocabulary + 1; i < model.outputs(); ++i) out["suppress_tokens"].push_back(i);
  }
  return out.dump(2) + '\n';
}

// Returns the text of processor_config.json, which determines how transformers' processor converts tokens to
// text and times.
std::string processor_config(const Tokenizer& tokenizer, SpeechHead head) {
  Json out = {{"processor_class", "ParakeetProcessor"},
              {"decoder_type", head == SpeechHead::tdt    ? "tdt"
                               : head == SpeechHead::rnnt ? "rnnt"
                                                          : "ctc"}};
  if (head != SpeechHead::ctc) out["blank_token"] = transformers_blank(tokenizer, head);
  return out.dump(2) + '\n';
}

Status write_new_folder(const std::string& folder, const FolderFiles& files) {
  const std::size_t name = folder.rfind('/') + 1;  // npos + 1 is 0
  const std::string partial = folder.substr(0, name) + "." + folder.substr(name) + ".partial";
  RETURN_IF_ERROR(remove_tree(partial));  // left by a killed writer
  ASSIGN_OR_RETURN(ScratchFolder scratch, ScratchFolder::make(partial));
  RETURN_IF_ERROR(files.write(partial));
  RETURN_IF_ERROR(rename_path(partial, folder));
  scratch.release();
  return sync_folder(parent_folder(folder));
}

Status write_into_folder(const std::string& folder, const FolderFiles& files) {
  if (!is_folder(folder)) return Status::invalid(folder + ": is there and not a folder; choose another name");
  const std::string config = folder + "/config.json";
  if (::unlink(config.c_str()) != 0 && errno != ENOENT) return system_error(config, "remove", errno);
  return files.write(folder);
}

// Returns an error unless the weights have exactly the tensors of `origin`, with equal shapes, so that its
// config and tokenizer fit them.
Status check_same_tensors(const SpeechArchive& origin, std::span<const TensorSource> weights) {
  std::map<std::string_view, const TensorSource*> given;
  for (const TensorSource& source : weights) given.emplace(source.name, &source);
  std::vector<std::string> wrong;
  for (const StoredTensor& tensor : origin.tensors()) {
    const auto found = given.find(tensor.name);
    if (found == given.end()) {
      wrong.push_back(tensor.name + " is missing");
    } else if (found->second->shape != tensor.shape) {
      wrong.push_back(fmt::format("{} is {}, expected {}", tensor.name, shape_text(found->second->shape),
                                  shape_text(tensor.shape)));
    }
    if (found != given.end()) given.erase(found);
  }
  for (const auto& [name, source] : given) wrong.push_back(std::string(name) + " is not in it");
  if (wrong.empty()) return {};
  const std::string more = wrong.size() > kNamed ? fmt::format("; and {} more", wrong.size() - kNamed) : "";
  wrong.resize(std::min(wrong.size(), kNamed));
  return invalid_error("the weights are not those of a model like {}: {}{}", origin.path(),
                       fmt::join(wrong, "; "), more);
}

// Checks the parts of a NeMo config that the tensors' names and shapes do not determine.
Status check_same_head(const SpeechArchive& origin, const SpeechModelSettings& model) {
  if (has_same_head(origin.settings(), model)) return {};
  return invalid_error(
      "the head or the durations of the model are not those in the config of {}, which a .nemo "
      "archive would keep; write a folder of transformers",
      origin.path());
}

// Returns true if NeMo's config of `origin` describes the model exactly and can be kept unchanged.
bool keeps_config(const SpeechArchive& origin, const SpeechModelSettings& model,
                  std::span<const TensorSource> weights, const FeatureSettings& features,
                  const Tokenizer& tokenizer) {
  if (origin.kind() != SpeechFiles::nemo || origin.config().hybrid) return false;
  if (!check_same_head(origin, model).ok()) return false;
  if (!check_same_tensors(origin, weights).ok() || !same_features(origin.features(), features)) return false;
  return has_tokenizer(origin, tokenizer);
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

// Adds the weights under NeMo's names.
void add_renamed(std::vector<TensorSource>& out, std::span<const TensorSource> weights,
                 const SpeechModelSettings& model) {
  for (const TensorSource& source : weights) {
    out.push_back(source);
    if (auto name = nemo_name(source.name, model.joint_dropout)) out.back().name = std::move(*name);
  }
}

// Writes a `.nemo` archive whose config is generated from the settings, for a model that no existing archive
// describes.
Status write_made_nemo_model(const std::string& path, const SpeechModelSettings& model,
                             const FeatureSettings& features, const Tokenizer& tokenizer,
                             const SpeechArchive* origin, std::span<const TensorSource> weights) {
  if (tokenizer.size() != model.vocabulary) {
    return invalid_error("{}: {} has {} tokens, but the model has {}", path, tokenizer.name(),
                         tokenizer.size(), model.vocabulary);
  }
  ASSIGN_OR_RETURN(auto contents, nemo_tokenizer_files(tokenizer));
  constexpr std::pair<const char*, const char*> kKeys[] = {{"model_path", "tokenizer.model"},
                                                           {"vocab_path", "vocab.txt"},
                                                           {"spe_tokenizer_vocab", "tokenizer.vocab"}};
  NamedFiles names, files;
  for (const auto& [key, name] : kKeys) {
    std::string& bytes = contents.at(name);
    names[key] = xxh3_hex(bytes) + '_' + name;
    files[names[key]] = std::move(bytes);
  }
  ASSIGN_OR_RETURN(const std::string config,
                   with_context(path, nemo_config(model, features, pieces_of(tokenizer), names)));
  std::vector<TensorSource> sources = table_sources(features, origin);
  add_renamed(sources, weights, model);
  return write_nemo(path, config, sources, files);
}

}  // namespace

Status write_nemo_model(const std::string& path, const SpeechArchive& origin,
                        std::span<const TensorSource> weights) {
  if (origin.kind() != SpeechFiles::nemo) {
    return invalid_error(
        "{}: a .nemo archive needs the config and the tokenizer of one, but the model began with "
        "{}; write a folder of transformers, or begin with a .nemo archive",
        path, origin.path());
  }
  if (origin.config().hybrid) {
    return invalid_error(
        "{}: {} is a hybrid of a transducer and CTC, whose config does not fit the transducer "
        "alone; write a folder of transformers",
        path, origin.path());
  }
  RETURN_IF_ERROR(with_context(path, check_same_tensors(origin, weights)));
  std::vector<TensorSource> sources;
  for (const StoredTensor& tensor : origin.preprocessor()) sources.push_back(source_of(tensor));
  add_renamed(sources, weights, origin.settings());
  ASSIGN_OR_RETURN(const auto files, origin.other_files());
  return write_nemo(path, origin.config_text(), sources, files);
}

Status write_transformers_model(const std::string& folder, const SpeechModelSettings& model,
                                const SpeechArchive* origin, std::span<const TensorSource> weights,
                                std::optional<FeatureSettings> features, const Tokenizer* tokenizer) {
  const bool like_origin = origin != nullptr && origin->settings().vocabulary == model.vocabulary &&
                           (tokenizer == nullptr || has_tokenizer(*origin, *tokenizer));
  const bool same_head = origin != nullptr && has_same_head(origin->settings(), model);
  const std::int64_t pad = like_origin ? origin->config().pad : model.blank();
  FolderFiles files{{}, {}, weights};
  ASSIGN_OR_RETURN(files.config,
                   with_context(folder, transformers_config({model, pad, {}}, torch_dtype(weights))));
  if (origin != nullptr) {
    ASSIGN_OR_RETURN(files.others, origin->other_files());
  }
  const bool transducer = model.head != SpeechHead::ctc;
  // Folders of version 0.2 have no generation_config.json, and their tokenizer names a transducer's blank
  // `<pad>`.
  const bool keeps_files = like_origin && same_head && origin->kind() == SpeechFiles::transformers &&
                           (!transducer || files.others.contains(kGeneration));
  if (!keeps_files) files.others.erase(kGeneration);
  if (tokenizer != nullptr && !keeps_files)
    RETURN_IF_ERROR(with_context(folder, put_tokenizer(files, *tokenizer, model.head, pad)));
  RETURN_IF_ERROR(with_context(folder, add_feature_file(files, origin, features, model.mel_bands)));
  if (transducer && !files.others.contains(kGeneration))
    files.others[kGeneration] = generation_config(model, pad);
  if (tokenizer != nullptr && !files.others.contains(kProcessor))
    files.others[kProcessor] = processor_config(*tokenizer, model.head);
  return path_exists(folder) ? write_into_folder(folder, files) : write_new_folder(folder, files);
}

Status export_speech_model(std::span<const TensorSource> weights, const SpeechModelSettings& model,
                           const SpeechArchive* origin, const std::string& target,
                           std::optional<FeatureSettings> features, const Tokenizer* tokenizer) {
  if (const std::string suffix(file_suffix(target));
      !suffix.empty() && suffix != ".nemo" && !path_exists(target)) {
    return invalid_error(
        "{}: models are not written as {}; expected a name that ends with .nemo, which is an "
        "archive for NeMo, or the name of a folder for transformers, without a suffix",
        target, suffix);
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
    RETURN_IF_ERROR(with_context(target, check_same_head(*origin, model)));
  }
  return write_nemo_model(target, *origin, weights);
}

}  // namespace octavo_train
