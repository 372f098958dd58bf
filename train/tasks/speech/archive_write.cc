// Writes a model in NeMo's and transformers' formats; see archive.h.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/formats/safetensors_format.h"
#include "train/io/byte_order.h"
#include "train/io/file_descriptor.h"
#include "train/io/folders.h"
#include "train/io/scratch_folder.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/archive_features.h"
#include "train/tasks/speech/archive_tokenizer.h"
#include "train/tasks/speech/names.h"
#include "train/tasks/speech/tokenizer_export.h"

#include <nlohmann/json.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

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
  std::map<std::string, std::string> others;
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
  const auto has = [&](const FeatureFile& file) { return files.others.contains(std::string(file.name)); };
  if (origin != nullptr && std::ranges::any_of(kFeatureFiles, has) && same_features(first, now)) return {};
  for (const FeatureFile& file : kFeatureFiles) files.others.erase(std::string(file.name));
  Result<std::string> text = transformers_features(now);
  if (!text.ok()) return text.status();
  files.others[std::string(kFeatureFiles[0].name)] = std::move(*text);
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
  files.others.clear();
  auto made = transformers_tokenizer_files(tokenizer, head, pad);
  if (!made.ok() && made.status().code() == StatusCode::unsupported)
    made = NamedFiles{{"tokenizer.model", tokenizer.bytes()}};
  if (!made.ok()) return made.status();
  for (auto& [name, text] : *made) files.others[name] = std::move(text);
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
  Result<ScratchFolder> scratch = ScratchFolder::make(partial);
  if (!scratch.ok()) return scratch.status();
  RETURN_IF_ERROR(files.write(partial));
  RETURN_IF_ERROR(rename_path(partial, folder));
  scratch->release();
  return sync_folder(parent_folder(folder));
}

Status write_into_folder(const std::string& folder, const FolderFiles& files) {
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) return system_error(folder, "open", errno);
  if (!S_ISDIR(found.st_mode))
    return Status::invalid(folder + ": is there and not a folder; choose another name");
  const std::string config = folder + "/config.json";
  if (::unlink(config.c_str()) != 0 && errno != ENOENT) return system_error(config, "remove", errno);
  return files.write(folder);
}

}  // namespace

Status check_same_tensors(const SpeechArchive& origin, std::span<const TensorSource> weights) {
  std::map<std::string_view, const TensorSource*> given;
  for (const TensorSource& source : weights) given.emplace(source.name, &source);
  std::vector<std::string> wrong;
  for (const StoredTensor& tensor : origin.tensors()) {
    const auto found = given.find(tensor.name);
    if (found == given.end()) {
      wrong.push_back(tensor.name + " is missing");
    } else if (found->second->shape != tensor.shape) {
      wrong.push_back(tensor.name + " is " + shape_text(found->second->shape) + ", expected " +
                      shape_text(tensor.shape));
    }
    if (found != given.end()) given.erase(found);
  }
  for (const auto& [name, source] : given) wrong.push_back(std::string(name) + " is not in it");
  if (wrong.empty()) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(wrong.size(), kNamed); ++i) text += (i > 0 ? "; " : "") + wrong[i];
  if (wrong.size() > kNamed) text += "; and " + std::to_string(wrong.size() - kNamed) + " more";
  return Status::invalid("the weights are not those of a model like " + origin.path() + ": " + text);
}

Status write_nemo_model(const std::string& path, const SpeechArchive& origin,
                        std::span<const TensorSource> weights) {
  if (origin.kind() != SpeechFiles::nemo) {
    return Status::invalid(
        path + ": a .nemo archive needs the config and the tokenizer of one, but the model began with " +
        origin.path() + "; write a folder of transformers, or begin with a .nemo archive");
  }
  if (origin.config().hybrid) {
    return Status::invalid(path + ": " + origin.path() +
                           " is a hybrid of a transducer and CTC, whose config does not fit the transducer "
                           "alone; write a folder of transformers");
  }
  if (Status status = check_same_tensors(origin, weights); !status.ok()) return placed(path, status);
  std::vector<TensorSource> sources;
  for (const StoredTensor& tensor : origin.preprocessor()) sources.push_back(source_of(tensor));
  for (const TensorSource& source : weights) {
    sources.push_back(source);
    if (auto name = nemo_name(source.name, origin.settings().joint_dropout))
      sources.back().name = std::move(*name);
  }
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
  const Result<std::string> config = transformers_config({model, pad, {}}, torch_dtype(weights));
  if (!config.ok()) return placed(folder, config.status());
  FolderFiles files{*config, {}, weights};
  if (origin != nullptr) {
    ASSIGN_OR_RETURN(auto others, origin->other_files());
    files.others = std::move(others);
  }
  const bool transducer = model.head != SpeechHead::ctc;
  // Folders of version 0.2 have no generation_config.json, and their tokenizer names a transducer's blank
  // `<pad>`.
  const bool keeps_files = like_origin && same_head && origin->kind() == SpeechFiles::transformers &&
                           (!transducer || files.others.contains(kGeneration));
  if (!keeps_files) files.others.erase(kGeneration);
  if (tokenizer != nullptr && !keeps_files) {
    if (Status bad = put_tokenizer(files, *tokenizer, model.head, pad); !bad.ok()) return placed(folder, bad);
  }
  if (Status bad = add_feature_file(files, origin, features, model.mel_bands); !bad.ok())
    return placed(folder, bad);
  if (transducer && !files.others.contains(kGeneration))
    files.others[kGeneration] = generation_config(model, pad);
  if (tokenizer != nullptr && !files.others.contains(kProcessor))
    files.others[kProcessor] = processor_config(*tokenizer, model.head);
  return path_exists(folder) ? write_into_folder(folder, files) : write_new_folder(folder, files);
}

}  // namespace octavo_train
