// A speech model for other programs: see export.h and archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/export.h"

#include "train/tasks/speech/entry.h"
#include "train/tasks/speech/origin.h"

namespace octavo::train {

Status SpeechEntry::export_model(const ModelExport& request) {
  const auto origin = open_speech_origin(request.settings);
  if (!origin.ok()) return origin.status();
  const SpeechArchive* const archive = origin->has_value() ? &**origin : nullptr;
  const auto model = speech_model_of(request.settings, archive);
  if (!model.ok()) return model.status();
  return export_speech_model(request.weights, *model, archive, request.target,
                             speech_features_of(*model, archive));
}

}  // namespace octavo::train
