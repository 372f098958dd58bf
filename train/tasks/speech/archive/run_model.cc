// See run_model.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/run_model.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_names.h"
#include "train/config/paths.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/config/keys.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLargestModel = 1 << 20;  // bytes of model.json

// Visits every setting that tensors or decoding depend on. Also visits the settings of training, for a run
// that begins with this model.
template <class Model, class Visit>
void visit_model(Model& m, Visit visit) {
  visit("mel_bands", m.mel_bands);
  visit("subsampling_channels", m.subsampling_channels);
  visit("encoder_layers", m.encoder_layers);
  visit("width", m.width);
  visit("heads", m.heads);
  visit("feed_forward", m.feed_forward);
  visit("kernel", m.kernel);
  visit("freeze_batch_norm", m.freeze_batch_norm);
  visit("vocabulary", m.vocabulary);
  visit("predictor_width", m.predictor_width);
  visit("predictor_layers", m.predictor_layers);
  visit("joint_width", m.joint_width);
  visit("durations", m.durations);
  visit("sigma", m.sigma);
  visit("omega", m.omega);
  visit("reduction", m.reduction);
  visit("dropout", m.dropout);
  visit("attention_dropout", m.attention_dropout);
  visit("input_dropout", m.input_dropout);
  visit("predictor_dropout", m.predictor_dropout);
  visit("joint_dropout", m.joint_dropout);
}

template <class Features, class Visit>
void visit_features(Features& f, Visit visit) {
  visit("sample_rate", f.sample_rate);
  visit("window_size", f.window_size);
  visit("window_stride", f.window_stride);
  visit("n_fft", f.n_fft);
  visit("features", f.features);
  visit("lowfreq", f.lowfreq);
  visit("highfreq", f.highfreq);
  visit("preemph", f.preemph);
  visit("dither", f.dither);
  visit("log_zero_guard_value", f.log_zero_guard_value);
}

// Checkpoints of version 0.2 do not have these keys. A missing key means the default.
constexpr const char *kMaxSymbols = "max_symbols", *kPadTo = "pad_to";

constexpr const char *kModel = "model", *kFeatures = "features", *kHead = "head";

NLOHMANN_JSON_SERIALIZE_ENUM(SpeechHead,
                             {{SpeechHead::tdt, "tdt"}, {SpeechHead::rnnt, "rnnt"}, {SpeechHead::ctc, "ctc"}})

std::optional<std::string> named_tokenizer(const Settings& settings) {
  const auto& keys = settings.own.get<TokenizerKeys>();
  return keys.model ? keys.model : keys.dir;
}

}  // namespace

Result<std::optional<SpeechArchive>> open_speech_origin(const Settings& settings) {
  std::optional<SpeechArchive> out;
  if (!settings.own.get<SpeechKeys>().pretrained || settings.model.name == kFastConformer) return out;
  ASSIGN_OR_RETURN(out, SpeechArchive::open(settings.model.name));
  return out;
}

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
    return invalid_error("model.vocab_size: got {}, but {} has {} tokens; leave it out", *keys.vocab_size,
                         tokenizer.name(), tokenizer.size());
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
  return invalid_error(
      "model.tokenizer.model: not given, and {} has no files with a tokenizer; `octavo data "
      "make-tokenizer` makes one",
      settings.model.name);
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
    return invalid_error(
        "data.sample_rate: got {}, but {} hears {} samples a second; recordings of any rate are "
        "resampled: leave it out",
        *rate, settings.model.name, out.sample_rate);
  }
  take(keys.features, out.features);
  take(keys.n_fft, out.n_fft);
  take(keys.window_size, out.window_size);
  take(keys.window_stride, out.window_stride);
  take(keys.preemph, out.preemph);
  take(keys.dither, out.dither);
  if (out.features != model.mel_bands) {
    return invalid_error(
        "model.preprocessor.features: got {}, but the encoder takes {} bands (model.encoder.feat_in)",
        out.features, model.mel_bands);
  }
  return out;
}

Result<FeatureTables> speech_tables_of(const FeatureSettings& features, const SpeechArchive* origin) {
  if (origin == nullptr || !same_features(origin->features(), features)) return FeatureTables{};
  return origin->feature_tables();
}

NamedFiles checkpoint_extra_files(const BundledModel& model, const std::string& tokenizer) {
  Json out;
  const auto write = [](Json& to) {
    return [&to](const char* name, const auto& value) { to[name] = value; };
  };
  out[kModel][kHead] = model.model.head;
  visit_model(model.model, write(out[kModel]));
  visit_features(model.features, write(out[kFeatures]));
  out[kModel][kMaxSymbols] = model.model.max_symbols;
  out[kFeatures][kPadTo] = model.features.pad_to;
  return {{kKeptModel, out.dump(2) + '\n'}, {kKeptTokenizer, tokenizer}};
}

Result<std::optional<BundledModel>> read_kept_model(const std::string& checkpoint) {
  const std::string path = checkpoint + '/' + kKeptModel;
  std::optional<BundledModel> out;
  if (!path_exists(path)) return out;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kLargestModel));
  try {
    const Json json = Json::parse(text);
    const auto read = [](const Json& from) {
      return [&from](const char* name, auto& value) { from.at(name).get_to(value); };
    };
    out.emplace();
    json.at(kModel).at(kHead).get_to(out->model.head);
    visit_model(out->model, read(json.at(kModel)));
    visit_features(out->features, read(json.at(kFeatures)));
    out->model.max_symbols = json.at(kModel).value(kMaxSymbols, out->model.max_symbols);
    out->features.pad_to = json.at(kFeatures).value(kPadTo, out->features.pad_to);
  } catch (const Json::exception& error) {
    return Status::invalid(path + ": is damaged, or of another version of octavo: " + error.what());
  }
  return out;
}

}  // namespace octavo_train
