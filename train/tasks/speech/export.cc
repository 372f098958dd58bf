// A speech model for other programs: see export.h and archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"

#include "train/files/checkpoint_names.h"
#include "train/tasks/speech/archive_tokenizer.h"
#include "train/tasks/speech/entry.h"
#include "train/tasks/speech/origin.h"

#include <optional>
#include <utility>

namespace octavo::train {
namespace {

// The checkpoint's own; else that of the files, where they have one that can be read.
Result<std::optional<Tokenizer>> tokenizer_of(const std::string& checkpoint, const SpeechArchive* origin) {
  std::optional<Tokenizer> out;
  const std::string kept = checkpoint + "/tokenizer.model";
  const bool own = path_exists(kept);
  if (!own && origin == nullptr) return out;
  auto opened = own ? Tokenizer::open(kept) : archive_tokenizer(*origin);
  if (opened.ok()) out.emplace(std::move(*opened));
  if (!opened.ok() && own) return opened.status();
  return out;
}

}  // namespace

Status SpeechEntry::export_model(const ModelExport& request) {
  const auto origin = open_speech_origin(request.settings);
  if (!origin.ok()) return origin.status();
  const SpeechArchive* const archive = origin->has_value() ? &**origin : nullptr;
  auto model = speech_model_of(request.settings, archive);
  if (!model.ok()) return model.status();
  const auto tokenizer = tokenizer_of(request.checkpoint, archive);
  if (!tokenizer.ok()) return tokenizer.status();
  const bool known = tokenizer->has_value() && (*tokenizer)->size() == model->vocabulary;
  return export_speech_model(request.weights, *model, archive, request.target,
                             speech_features_of(*model, archive), known ? &**tokenizer : nullptr);
}

}  // namespace octavo::train
