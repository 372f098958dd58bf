// Writing a model into NeMo's and transformers' files; see archive.h.
// SPDX-License-Identifier: MIT
#include "train/files/byte_order.h"
#include "train/files/file_descriptor.h"
#include "train/files/safetensors_format.h"
#include "train/files/text_file.h"
#include "train/tasks/speech/archive.h"
#include "train/tasks/speech/names.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>

namespace octavo::train {
namespace {

constexpr std::size_t kNamed = 20;  // a message names no more

TensorSource source_of(const StoredTensor& tensor) {
  return {tensor.name, tensor.dtype, tensor.shape,
          [bytes = tensor.bytes]() -> Result<Bytes> { return bytes; }};
}

// The config and the tokenizer of an archive fit weights that have its tensors and no others.
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

std::string torch_dtype(std::span<const TensorSource> weights) {
  for (const TensorSource& source : weights) {
    if (source.dtype == "BF16") return "bfloat16";
    if (source.dtype == "F16") return "float16";
    if (source.dtype == "F32") return "float32";
  }
  return "float32";
}

}  // namespace

Status write_nemo_model(const std::string& path, const SpeechArchive& origin,
                        std::span<const TensorSource> weights) {
  if (origin.kind() != SpeechFiles::nemo) {
    return Status::invalid(
        path + ": a .nemo archive needs the config and the tokenizer of one, but the model began with " +
        origin.path() + "; write a folder of transformers, or begin with a .nemo archive");
  }
  if (Status status = check_same_tensors(origin, weights); !status.ok()) return placed(path, status);
  std::vector<TensorSource> sources;
  for (const StoredTensor& tensor : origin.preprocessor()) sources.push_back(source_of(tensor));
  for (const TensorSource& source : weights) {
    sources.push_back(source);
    if (auto name = nemo_name(source.name)) sources.back().name = std::move(*name);
  }
  const auto files = origin.other_files();
  if (!files.ok()) return files.status();
  return write_nemo(path, origin.config_text(), sources, *files);
}

Status write_transformers_model(const std::string& folder, const SpeechModelSettings& model,
                                const SpeechArchive* origin, std::span<const TensorSource> weights) {
  const bool like_origin = origin != nullptr && origin->settings().vocabulary == model.vocabulary;
  const std::int64_t pad = like_origin ? origin->config().pad : model.blank();
  const Result<std::string> config = transformers_config({model, pad, {}}, torch_dtype(weights));
  if (!config.ok()) return placed(folder, config.status());
  std::map<std::string, std::string> files;
  if (origin != nullptr) {
    auto others = origin->other_files();
    if (!others.ok()) return others.status();
    files = std::move(*others);
  }
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
    return system_error(folder, "make the folder", errno);
  if (Status status = write_safetensors(folder + "/model.safetensors", weights, {{"format", "pt"}});
      !status.ok())
    return status;
  for (const auto& [name, text] : files) {
    if (!is_tokenizer_file(name)) continue;
    if (Status status = write_text_file(folder + '/' + name, text); !status.ok()) return status;
  }
  // Last: a folder without it is no model.
  return write_text_file(folder + "/config.json", *config);
}

Status export_speech_model(const std::string& weights_file, const SpeechModelSettings& model,
                           const SpeechArchive* origin, const std::string& target) {
  const Result<Safetensors> file = Safetensors::open(weights_file);
  if (!file.ok()) return file.status();
  std::vector<TensorSource> sources;
  for (const StoredTensor& tensor : file->tensors()) sources.push_back(source_of(tensor));
  if (!target.ends_with(".nemo")) return write_transformers_model(target, model, origin, sources);
  if (origin != nullptr) return write_nemo_model(target, *origin, sources);
  return Status::invalid(target +
                         ": a .nemo archive needs the config and the tokenizer of one, but the model " +
                         "began with random weights; write a folder of transformers");
}

}  // namespace octavo::train
