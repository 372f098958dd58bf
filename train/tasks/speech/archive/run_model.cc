// See run_model.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/run_model.h"

#include "train/base/status.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/config/paths.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/config/keys.h"

#include <nlohmann/json.hpp>

#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

NLOHMANN_JSON_SERIALIZE_ENUM(SpeechHead,
                             {{SpeechHead::tdt, "tdt"}, {SpeechHead::rnnt, "rnnt"}, {SpeechHead::ctc, "ctc"}})

constexpr std::uint64_t kLargestModel = 1 << 20;  // bytes of model.json

using M = SpeechModelSettings;
using F = FeatureSettings;

// Every setting that tensors or decoding depend on, and the settings of training, for a run that begins with
// this model.
constexpr std::tuple kModelFields(
    std::pair("head", &M::head), std::pair("mel_bands", &M::mel_bands),
    std::pair("subsampling_channels", &M::subsampling_channels),
    std::pair("encoder_layers", &M::encoder_layers), std::pair("width", &M::width),
    std::pair("heads", &M::heads), std::pair("feed_forward", &M::feed_forward),
    std::pair("kernel", &M::kernel), std::pair("freeze_batch_norm", &M::freeze_batch_norm),
    std::pair("vocabulary", &M::vocabulary), std::pair("predictor_width", &M::predictor_width),
    std::pair("predictor_layers", &M::predictor_layers), std::pair("joint_width", &M::joint_width),
    std::pair("durations", &M::durations), std::pair("sigma", &M::sigma), std::pair("omega", &M::omega),
    std::pair("reduction", &M::reduction), std::pair("dropout", &M::dropout),
    std::pair("attention_dropout", &M::attention_dropout), std::pair("input_dropout", &M::input_dropout),
    std::pair("predictor_dropout", &M::predictor_dropout), std::pair("joint_dropout", &M::joint_dropout));
constexpr std::tuple kFeatureFields(std::pair("sample_rate", &F::sample_rate),
                                    std::pair("window_size", &F::window_size),
                                    std::pair("window_stride", &F::window_stride),
                                    std::pair("n_fft", &F::n_fft), std::pair("features", &F::features),
                                    std::pair("lowfreq", &F::lowfreq), std::pair("highfreq", &F::highfreq),
                                    std::pair("preemph", &F::preemph), std::pair("dither", &F::dither),
                                    std::pair("log_zero_guard_value", &F::log_zero_guard_value));

template <class T, class Fields>
void write_fields(Json& to, const T& from, const Fields& fields) {
  std::apply([&](const auto&... field) { ((to[field.first] = from.*field.second), ...); }, fields);
}

template <class T, class Fields>
void read_fields(const Json& from, T& to, const Fields& fields) {
  std::apply([&](const auto&... field) { (from.at(field.first).get_to(to.*field.second), ...); }, fields);
}

// Checkpoints of version 0.2 do not have these keys. A missing key means the default.
constexpr const char *kMaxSymbols = "max_symbols", *kPadTo = "pad_to";

constexpr const char *kModel = "model", *kFeatures = "features";

std::optional<std::string> named_tokenizer(const Settings& settings) {
  const auto& keys = settings.task_settings.get<TokenizerKeys>();
  return keys.model ? keys.model : keys.dir;
}

}  // namespace

Result<std::optional<SpeechArchive>> open_pretrained_archive(const Settings& settings) {
  std::optional<SpeechArchive> out;
  if (!settings.task_settings.get<SpeechKeys>().pretrained || settings.model.name == kFastConformer)
    return out;
  ASSIGN_OR_RETURN(out, SpeechArchive::open(settings.model.name));
  return out;
}

Result<SpeechModelSettings> speech_model_of(const Settings& settings, const SpeechArchive* origin) {
  const auto& keys = settings.task_settings.get<SpeechKeys>();
  const auto known =
      origin != nullptr ? std::optional(origin->settings()) : known_speech_model(settings.model.name);
  if (!known)
    return Status::invalid("model.name: got " + settings.model.name + ", of which no sizes are known");
  SpeechModelSettings out = with_speech_keys(*known, keys);
  if (!named_tokenizer(settings)) return out;
  ASSIGN_OR_RETURN(const auto tokenizer, open_speech_tokenizer(settings, origin));
  if (keys.vocab_size && *keys.vocab_size != tokenizer.size()) {
    return invalid_error("model.vocab_size: got {}, but {} has {} tokens; omit it", *keys.vocab_size,
                         tokenizer.name(), tokenizer.size());
  }
  out.vocabulary = tokenizer.size();
  return out;
}

Result<Tokenizer> open_speech_tokenizer(const Settings& settings, const SpeechArchive* origin) {
  if (const auto path = named_tokenizer(settings)) {
    auto tokenizer = Tokenizer::open(*path);
    if (tokenizer.ok()) return tokenizer;
    const std::string key = settings.task_settings.get<TokenizerKeys>().model ? "model.tokenizer.model: "
                                                                              : "model.tokenizer.dir: ";
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
  const auto& keys = settings.task_settings.get<FeatureKeys>();
  const auto& rate = settings.task_settings.get<RecordingSettings>().sample_rate;
  FeatureSettings out = origin != nullptr ? origin->features() : FeatureSettings();
  out.features = model.mel_bands;
  take(keys.sample_rate, out.sample_rate);
  if (origin == nullptr) take(rate, out.sample_rate);
  if (rate && *rate != out.sample_rate) {
    return invalid_error(
        "data.sample_rate: got {}, but {} takes {} samples a second; recordings of any rate are "
        "resampled: omit it",
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
  write_fields(out[kModel], model.model, kModelFields);
  write_fields(out[kFeatures], model.features, kFeatureFields);
  out[kModel][kMaxSymbols] = model.model.max_symbols;
  out[kFeatures][kPadTo] = model.features.pad_to;
  return {{kKeptModel, out.dump(2) + '\n'}, {kBundledTokenizer, tokenizer}};
}

Result<std::optional<BundledModel>> read_bundled_model(const std::string& checkpoint) {
  const std::string path = checkpoint + '/' + kKeptModel;
  std::optional<BundledModel> out;
  if (!path_exists(path)) return out;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kLargestModel));
  try {
    const Json json = Json::parse(text);
    out.emplace();
    read_fields(json.at(kModel), out->model, kModelFields);
    read_fields(json.at(kFeatures), out->features, kFeatureFields);
    out->model.max_symbols = json.at(kModel).value(kMaxSymbols, out->model.max_symbols);
    out->features.pad_to = json.at(kFeatures).value(kPadTo, out->features.pad_to);
  } catch (const Json::exception& error) {
    return Status::invalid(path + ": is damaged, or of another version of octavo: " + error.what());
  }
  return out;
}

}  // namespace octavo_train
