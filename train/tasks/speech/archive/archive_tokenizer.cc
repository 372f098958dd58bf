// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/archive_tokenizer.h"

#include "train/base/status.h"
#include "train/config/node.h"
#include "train/tasks/speech/archive/config_keys.h"

#include <map>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

using Files = std::map<std::string, std::string>;

constexpr std::string_view kAdvice = "; name one with model.tokenizer.model: PATH";

// Returns the name of the tokenizer file that NeMo's config refers to.
Result<std::string> nemo_file(const SpeechArchive& archive, const Files& files) {
  constexpr std::string_view kInside = "nemo:";
  const Source source{archive.path() + ": model_config.yaml"};
  const Result<YamlNode> root = read_yaml(archive.config_text(), source);
  if (!root.ok()) return root.status();
  const std::string type = text_at(*root, "tokenizer.type");
  if (!type.empty() && type != "bpe") {
    return Status::unsupported(source.name + ": tokenizer.type: got " + type +
                               ", expected bpe, a SentencePiece model" + std::string(kAdvice));
  }
  std::string name = text_at(*root, "tokenizer.model_path");
  if (name.starts_with(kInside)) name.erase(0, kInside.size());
  if (files.contains(name)) return name;
  for (const auto& [each, bytes] : files) {
    if (each.ends_with("tokenizer.model")) return each;
  }
  return Status::invalid(source.name + ": tokenizer.model_path: " +
                         (name.empty() ? "not given" : name + " is not in the archive") +
                         std::string(kAdvice));
}

Result<std::string> folder_file(const SpeechArchive& archive, const Files& files) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (files.contains(name)) return std::string(name);
  }
  return Status::invalid(archive.path() + ": the folder has no tokenizer.model and no tokenizer.json" +
                         std::string(kAdvice));
}

}  // namespace

Result<Tokenizer> archive_tokenizer(const SpeechArchive& archive) {
  ASSIGN_OR_RETURN(auto files, archive.other_files());
  const Result<std::string> name =
      archive.kind() == SpeechFiles::nemo ? nemo_file(archive, files) : folder_file(archive, files);
  if (!name.ok()) return name.status();
  Result<Tokenizer> out = Tokenizer::from_bytes(std::move(files.at(*name)), archive.path() + ": " + *name);
  if (!out.ok() || out->size() == archive.settings().vocabulary) return out;
  return Status::invalid(out->name() + " has " + std::to_string(out->size()) + " tokens, but the model has " +
                         std::to_string(archive.settings().vocabulary) + std::string(kAdvice));
}

}  // namespace octavo_train
