// Exports a speech model to the formats of other programs: see train/tasks/export.h and archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"
#include "train/base/status.h"

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/run_model.h"
#include "train/tasks/speech/entry.h"

#include <optional>
#include <utility>

namespace octavo_train {
namespace {

// Returns the checkpoint's tokenizer. If the checkpoint has none, returns the tokenizer of `origin`, or
// nothing if that cannot be read.
Result<std::optional<Tokenizer>> tokenizer_of(const std::string& checkpoint, const SpeechArchive* origin) {
  std::optional<Tokenizer> out;
  const std::string kept = checkpoint + '/' + kBundledTokenizer;
  const bool own = path_exists(kept);
  if (!own && origin == nullptr) return out;
  auto opened = own ? Tokenizer::open(kept) : archive_tokenizer(*origin);
  if (opened.ok()) out.emplace(std::move(*opened));
  if (!opened.ok() && own) return opened.status();
  return out;
}

// Returns the settings of the model and its features, from the run's config and the model files it names.
Result<BundledModel> configured_model(const Settings& settings, const SpeechArchive* origin) {
  ASSIGN_OR_RETURN(auto model, speech_model_of(settings, origin));
  ASSIGN_OR_RETURN(const auto features, speech_features_of(settings, origin, model));
  return BundledModel{std::move(model), features};
}

}  // namespace

Status SpeechEntry::export_model(const ModelExport& request) {
  ASSIGN_OR_RETURN(auto kept, read_bundled_model(request.checkpoint));
  // A checkpoint with model.json does not need the files of the original model.
  const auto origin = open_pretrained_archive(request.settings);
  if (!origin.ok() && !kept.has_value()) return origin.status();
  const SpeechArchive* const archive = origin.ok() && origin->has_value() ? &**origin : nullptr;
  ASSIGN_OR_RETURN(const auto found, kept.has_value() ? Result<BundledModel>(std::move(*kept))
                                                      : configured_model(request.settings, archive));
  ASSIGN_OR_RETURN(const auto tokenizer, tokenizer_of(request.checkpoint, archive));
  const bool known = tokenizer.has_value() && tokenizer->size() == found.model.vocabulary;
  return export_speech_model(request.weights, found.model, archive, request.target, found.features,
                             known ? &*tokenizer : nullptr);
}

}  // namespace octavo_train
