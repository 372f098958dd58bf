// SPDX-License-Identifier: MIT
#include "train/tasks/speech/bundled_model.h"

#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/io/text_file.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace octavo_train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLargest = 1 << 20;  // bytes of model.json

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

}  // namespace

std::map<std::string, std::string> checkpoint_extra_files(const BundledModel& model,
                                                          const std::string& tokenizer) {
  Json out;
  const auto write = [](Json& to) {
    return [&to](const char* name, const auto& value) { to[name] = value; };
  };
  out[kModel][kHead] = model.model.head;
  visit_model(model.model, write(out[kModel]));
  visit_features(model.features, write(out[kFeatures]));
  out[kModel][kMaxSymbols] = model.model.max_symbols;
  out[kFeatures][kPadTo] = model.features.pad_to;
  return {{std::string(kKeptModel), out.dump(2) + '\n'}, {std::string(kKeptTokenizer), tokenizer}};
}

Result<std::optional<BundledModel>> read_kept_model(const std::string& checkpoint) {
  const std::string path = checkpoint + '/' + std::string(kKeptModel);
  std::optional<BundledModel> out;
  if (!path_exists(path)) return out;
  const Result<std::string> text = read_text_file(path, kLargest);
  if (!text.ok()) return text.status();
  try {
    const Json json = Json::parse(*text);
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
