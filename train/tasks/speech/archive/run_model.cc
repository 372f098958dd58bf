// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/run_model.h"

#include "train/base/status.h"
#include "train/config/paths.h"
#include "train/tasks/speech/archive/archive_tokenizer.h"
#include "train/tasks/speech/config/model_config.h"
#include "train/tasks/speech/config/recording_settings.h"
#include "train/tasks/speech/features/feature_tables.h"

#include <utility>

namespace octavo_train {

Result<std::optional<SpeechArchive>> open_speech_origin(const Settings& settings) {
  std::optional<SpeechArchive> out;
  if (!settings.own.get<SpeechKeys>().pretrained || settings.model.name == kFastConformer) return out;
  ASSIGN_OR_RETURN(auto archive, SpeechArchive::open(settings.model.name));
  out.emplace(std::move(archive));
  return out;
}

namespace {

std::optional<std::string> named_tokenizer(const Settings& settings) {
  const auto& keys = settings.own.get<TokenizerKeys>();
  return keys.model ? keys.model : keys.dir;
}

template <class T>
void take(const std::optional<T>& from, T& to) {
  if (from) to = *from;
}

}  // namespace

Result<SpeechModelSettings> speech_model_of(const Settings& settings, const SpeechArchive* origin) {
  const auto& keys = settings.own.get<SpeechKeys>();
  const auto known =
      origin != nullptr ? std::optional(origin->settings()) : known_speech_model(settings.model.name);
  if (!known)
    return Status::invalid("model.name: got " + settings.model.name + ", of which no sizes are known");
  SpeechModelSettings out = with_speech_keys(*known, keys);
  if (!named_tokenizer(settings)) return out;
  ASSIGN_OR_RETURN(const auto tokenizer, open_speech_tokenizer(settings, origin));
  if (keys.vocab_size && *keys.vocab_size != tokenizer.size()) {
    return Status::invalid("model.vocab_size: got " + std::to_string(*keys.vocab_size) + ", but " +
                           tokenizer.name() + " has " + std::to_string(tokenizer.size()) +
                           " tokens; leave it out");
  }
  out.vocabulary = tokenizer.size();
  return out;
}

Result<Tokenizer> open_speech_tokenizer(const Settings& settings, const SpeechArchive* origin) {
  if (const auto path = named_tokenizer(settings)) {
    auto tokenizer = Tokenizer::open(*path);
    if (tokenizer.ok()) return tokenizer;
    const std::string key =
        settings.own.get<TokenizerKeys>().model ? "model.tokenizer.model: " : "model.tokenizer.dir: ";
    return Status(tokenizer.status().code(),
                  key + tokenizer.status().message() + places_looked_at(settings, *path));
  }
  if (origin != nullptr) return archive_tokenizer(*origin);
  return Status::invalid("model.tokenizer.model: not given, and " + settings.model.name +
                         " has no files with a tokenizer; `octavo data make-tokenizer` makes one");
}

Result<FeatureSettings> speech_features_of(const Settings& settings, const SpeechArchive* origin,
                                           const SpeechModelSettings& model) {
  const auto& keys = settings.own.get<FeatureKeys>();
  const auto& rate = settings.own.get<RecordingSettings>().sample_rate;
  FeatureSettings out = origin != nullptr ? origin->features() : FeatureSettings();
  out.features = model.mel_bands;
  take(keys.sample_rate, out.sample_rate);
  if (origin == nullptr) take(rate, out.sample_rate);
  if (rate && *rate != out.sample_rate) {
    return Status::invalid("data.sample_rate: got " + std::to_string(*rate) + ", but " + settings.model.name +
                           " hears " + std::to_string(out.sample_rate) +
                           " samples a second; recordings of any rate are resampled: leave it out");
  }
  take(keys.features, out.features);
  take(keys.n_fft, out.n_fft);
  take(keys.window_size, out.window_size);
  take(keys.window_stride, out.window_stride);
  take(keys.preemph, out.preemph);
  take(keys.dither, out.dither);
  if (out.features != model.mel_bands) {
    return Status::invalid("model.preprocessor.features: got " + std::to_string(out.features) +
                           ", but the encoder takes " + std::to_string(model.mel_bands) +
                           " bands (model.encoder.feat_in)");
  }
  return out;
}

Result<FeatureTables> speech_tables_of(const FeatureSettings& features, const SpeechArchive* origin) {
  if (origin == nullptr) return FeatureTables{};
  if (!same_features(origin->features(), features)) return FeatureTables{};
  return origin->feature_tables();
}

}  // namespace octavo_train
