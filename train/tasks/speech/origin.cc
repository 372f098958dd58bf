// SPDX-License-Identifier: MIT
#include "train/tasks/speech/origin.h"

#include "train/tasks/speech/model_config.h"

#include <utility>

namespace octavo::train {

Result<std::optional<SpeechArchive>> open_speech_origin(const Settings& settings) {
  std::optional<SpeechArchive> out;
  if (!settings.own.get<SpeechKeys>().pretrained || settings.model.name == kFastConformer) return out;
  auto archive = SpeechArchive::open(settings.model.name);
  if (!archive.ok()) return archive.status();
  out.emplace(std::move(*archive));
  return out;
}

Result<SpeechModelSettings> speech_model_of(const Settings& settings, const SpeechArchive* origin) {
  const auto& keys = settings.own.get<SpeechKeys>();
  if (origin != nullptr) return with_speech_keys(origin->settings(), keys);
  const auto known = known_speech_model(settings.model.name);
  if (known) return with_speech_keys(*known, keys);
  return Status::invalid("model.name: got " + settings.model.name + ", of which no sizes are known");
}

FeatureSettings speech_features_of(const SpeechModelSettings& model, const SpeechArchive* origin) {
  FeatureSettings out = origin != nullptr ? origin->features() : FeatureSettings();
  out.features = model.mel_bands;
  return out;
}

}  // namespace octavo::train
