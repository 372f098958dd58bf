// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognizer_files.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_choice.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/config.h"
#include "train/tasks/speech/archive_tokenizer.h"
#include "train/tasks/speech/bundled_model.h"
#include "train/tasks/speech/pretrained_source.h"
#include "train/tasks/speech/settings.h"

#include <array>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::string_view kWeights = "model.safetensors", kConfig = "config.yaml";

// Returns true for a run's folder, even if it has no checkpoint yet, and for a checkpoint's folder.
bool is_run(const std::string& name) {
  return path_exists(name + "/checksums.txt") || path_exists(name + "/metrics.jsonl") ||
         !list_checkpoints(name).empty();
}

Status no_tokenizer(const std::string& checkpoint, const Settings& settings) {
  const bool generated = settings.own.get<GeneratorSettings>().clips.has_value();
  return Status::invalid(
      checkpoint + ": the model has no tokenizer, so what it hears has no words" +
      (generated ? ": it was trained on generated clips (data.generator); train one on recordings"
                 : "; the checkpoint should have " + std::string(kKeptTokenizer)));
}

// Opens a checkpoint without a model description (bundled_model.h), from the files that the run started with.
Result<RecognizerFiles> open_origin(const std::string& path, const Settings& settings, Safetensors weights) {
  ASSIGN_OR_RETURN(auto origin, open_speech_origin(settings));
  const SpeechArchive* const archive = origin.has_value() ? &*origin : nullptr;
  ASSIGN_OR_RETURN(auto model, speech_model_of(settings, archive));
  const std::string kept = path + '/' + std::string(kKeptTokenizer);
  if (!path_exists(kept) && archive == nullptr) return no_tokenizer(path, settings);
  ASSIGN_OR_RETURN(auto tokenizer,
                   path_exists(kept) ? Tokenizer::open(kept) : open_speech_tokenizer(settings, archive));
  ASSIGN_OR_RETURN(const auto features, speech_features_of(settings, archive, model));
  ASSIGN_OR_RETURN(auto tables, speech_tables_of(features, archive));
  return RecognizerFiles{.model = std::move(model),
                         .features = features,
                         .tables = std::move(tables),
                         .tokenizer = std::move(tokenizer),
                         .weights_from = path,
                         .notes = {},
                         .archive = {},
                         .checkpoint = std::move(weights)};
}

Result<RecognizerFiles> open_checkpoint(const std::string& path, const Settings& settings) {
  ASSIGN_OR_RETURN(auto weights, Safetensors::open(path + '/' + std::string(kWeights)));
  ASSIGN_OR_RETURN(auto kept, read_kept_model(path));
  if (!kept.has_value()) return open_origin(path, settings, std::move(weights));
  ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::open(path + '/' + std::string(kKeptTokenizer)));
  return RecognizerFiles{.model = std::move(kept->model),
                         .features = kept->features,
                         .tables = {},
                         .tokenizer = std::move(tokenizer),
                         .weights_from = path,
                         .notes = {},
                         .archive = {},
                         .checkpoint = std::move(weights)};
}

Result<RecognizerFiles> open_run(const std::string& name, const std::string& which) {
  constexpr std::array<std::string_view, 2> kNeeded = {kWeights, kConfig};
  ASSIGN_OR_RETURN(auto chosen, choose_checkpoint(name, which, kNeeded));
  ASSIGN_OR_RETURN(const auto config, load(chosen.path + '/' + std::string(kConfig)));
  if (config.settings.task != "speech") {
    return Status::invalid(name + ": a model of the task " + config.settings.task +
                           " hears nothing, expected one of the task speech");
  }
  auto out = open_checkpoint(chosen.path, config.settings);
  if (!out.ok()) return out;
  for (const std::string& reason : chosen.skipped) out->notes.push_back("warning: skipped " + reason);
  if (!chosen.why.empty()) out->notes.push_back(chosen.path + ": " + chosen.why);
  return out;
}

Result<RecognizerFiles> open_archive(const std::string& name) {
  ASSIGN_OR_RETURN(auto archive, SpeechArchive::open(name));
  ASSIGN_OR_RETURN(auto tokenizer, archive_tokenizer(archive));
  ASSIGN_OR_RETURN(auto tables, archive.feature_tables());
  return RecognizerFiles{.model = archive.settings(),
                         .features = archive.features(),
                         .tables = std::move(tables),
                         .tokenizer = std::move(tokenizer),
                         .weights_from = archive.path(),
                         .notes = {},
                         .archive = std::move(archive),
                         .checkpoint = {}};
}

Status check_tokens(const RecognizerFiles& files) {
  if (files.tokenizer.size() == files.model.vocabulary) return {};
  return Status::invalid(files.tokenizer.name() + ": has " + std::to_string(files.tokenizer.size()) +
                         " tokens, but the model of " + files.weights_from + " has " +
                         std::to_string(files.model.vocabulary) + "; it is of another model");
}

}  // namespace

Result<RecognizerFiles> open_recognizer_files(const std::string& name, const std::string& checkpoint) {
  const bool run = is_run(name);
  if (!run && !checkpoint.empty()) {
    return Status::invalid("--checkpoint: got " + checkpoint + ", but " + name + " is no run's folder");
  }
  Result<RecognizerFiles> out = run ? open_run(name, checkpoint) : open_archive(name);
  if (!out.ok()) return out;
  RETURN_IF_ERROR(check_tokens(*out));
  return out;
}

}  // namespace octavo_train
