// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/archive_features.h"

#include "train/base/status.h"
#include "train/config/schema.h"
#include "train/formats/tensor_list.h"
#include "train/io/little_endian.h"

#include <cstring>

namespace octavo_train {
namespace {

using F = FeatureSettings;

std::string at_preprocessor(std::string_view key) { return "preprocessor." + std::string(key); }

// Returns the smallest power of two that is at least `least`: NeMo's default n_fft for a window.
std::int64_t power_of_two(std::int64_t least) {
  std::int64_t out = 1;
  while (out < least) out *= 2;
  return out;
}

Status check_bands(const YamlNode& root, const Source& source, const ExternalModelConfig& model,
                   std::string_view path) {
  if (model.features.features == model.model.mel_bands) return {};
  return refuse_key(root, source, path,
                    "got " + std::to_string(model.features.features) + ", expected " +
                        std::to_string(model.model.mel_bands) + ", the bands that the encoder takes");
}

std::vector<ExternalConfigKey> transformers_keys(const std::string& in) {
  return {
      only(in + "feature_extractor_type", "ParakeetFeatureExtractor", "\"ParakeetFeatureExtractor\""),
      taken(in + "feature_size", "80", integer(1, 4096), &F::features),
      taken(in + "hop_length", "160", integer(1, 1 << 20), &ExternalModelConfig::hop_length),
      taken(in + "n_fft", "512", integer(2, 1 << 20), &F::n_fft),
      only(in + "padding_side", "right", "\"right\""),
      only(in + "padding_value", "0.0", "0.0"),
      taken(in + "preemphasis", "0.97", real({.low = 0, .high = 1}), &F::preemph),
      only(in + "return_attention_mask", "true", "true"),
      taken(in + "sampling_rate", "16000", integer(1, 1 << 24), &F::sample_rate),
      taken(in + "win_length", "400", integer(1, 1 << 20), &ExternalModelConfig::win_length),
  };
}

Status take_table(const StoredTensor& tensor, std::size_t count, const std::string& name,
                  std::vector<float>& out) {
  if (tensor.dtype != "F32") return {};
  if (tensor.bytes.size() != count * sizeof(float)) {
    return Status::invalid(name + ": " + tensor.name + " is " + shape_text(tensor.shape) + ", expected " +
                           std::to_string(count) + " numbers, as the settings of its preprocessor say");
  }
  out.resize(count);
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return {};
}

}  // namespace

std::vector<ExternalConfigKey> nemo_feature_keys() {
  const auto seconds = real({.low = 0, .high = 3600});
  return {
      class_name(at_preprocessor("_target_"),
                 "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor"),
      taken(at_preprocessor("sample_rate"), "16000", integer(1, 1 << 24), &F::sample_rate),
      taken(at_preprocessor("window_size"), "0.02", seconds, &F::window_size),
      taken(at_preprocessor("window_stride"), "0.01", seconds, &F::window_stride),
      only(at_preprocessor("n_window_size"), "null", "null"),
      only(at_preprocessor("n_window_stride"), "null", "null"),
      with_null(only(at_preprocessor("window"), "hann", "\"hann\""), "null"),
      with_null(only(at_preprocessor("normalize"), "per_feature", "\"per_feature\""), "null"),
      taken(at_preprocessor("n_fft"), "0", integer(0, 1 << 20), &F::n_fft),
      with_null(taken(at_preprocessor("preemph"), "0.97", real({.low = 0, .high = 1}), &F::preemph), "0.0"),
      taken(at_preprocessor("features"), "64", integer(1, 4096), &F::features),
      taken(at_preprocessor("lowfreq"), "0", real(kNotNegative), &F::lowfreq),
      taken(at_preprocessor("highfreq"), "0", real(kNotNegative), &F::highfreq),
      with_null(only(at_preprocessor("log"), "true", "true"), "null"),
      only(at_preprocessor("log_zero_guard_type"), "add", "\"add\""),
      taken(at_preprocessor("log_zero_guard_value"), "5.9604644775390625e-08", real(kPositive),
            &F::log_zero_guard_value),
      taken(at_preprocessor("dither"), "1e-05", real(kNotNegative), &F::dither),
      only(at_preprocessor("frame_splicing"), "1", "1"),
      only(at_preprocessor("exact_pad"), "false", "false"),
      only(at_preprocessor("mag_power"), "2.0", "2.0"),
      only(at_preprocessor("mel_norm"), "slaney", "\"slaney\""),
      taken(at_preprocessor("pad_to"), "16", integer(0, 1 << 16), &F::pad_to),
      left(at_preprocessor("nb_augmentation_prob"), "0.0", "0.0"),
  };
}

Status read_nemo_features(const YamlNode& root, const Source& source, ExternalModelConfig& out) {
  const YamlNode* section = find_node(root, "preprocessor");
  if (section == nullptr || section->kind == YamlNode::Kind::null) {
    out.features.features = out.model.mel_bands;
    return {};
  }
  RETURN_IF_ERROR(read_keys(root, source, nemo_feature_keys(), out));
  if (out.features.n_fft == 0) out.features.n_fft = power_of_two(out.features.window());
  if (Status bad = check_features(out.features); !bad.ok()) return placed(source.name, bad);
  return check_bands(root, source, out, at_preprocessor("features"));
}

Result<FeatureSettings> read_transformers_features(std::string_view json, std::string_view prefix,
                                                   const std::string& name) {
  const Source source{name};
  const Result<YamlNode> root = read_yaml(json, source);
  if (!root.ok()) return root.status();
  ExternalModelConfig found;
  const std::vector<ExternalConfigKey> keys = transformers_keys(std::string(prefix));
  RETURN_IF_ERROR(read_keys(*root, source, keys, found));
  F& out = found.features;
  const auto rate = static_cast<double>(out.sample_rate);
  out.window_size = static_cast<double>(found.win_length) / rate;
  out.window_stride = static_cast<double>(found.hop_length) / rate;
  if (Status bad = check_features(out); !bad.ok()) return placed(name, bad);
  return out;
}

Result<std::string> transformers_features(const FeatureSettings& settings) {
  const FeatureSettings standard;
  if (settings.lowfreq != 0 ||
      (settings.highfreq != 0 && 2 * settings.highfreq != static_cast<double>(settings.sample_rate)) ||
      settings.log_zero_guard_value != standard.log_zero_guard_value) {
    return Status::unsupported(
        "transformers' features go from 0 Hz to half the rate and add 2^-24 before the logarithm, those of "
        "the "
        "model do not: write a .nemo archive");
  }
  ExternalModelConfig from;
  from.features = settings;
  from.hop_length = settings.hop();
  from.win_length = settings.window();
  std::vector<ExternalConfigKey> keys = transformers_keys("");
  keys.push_back(only("processor_class", "", "\"ParakeetProcessor\""));
  return write_keys(keys, from);
}

Result<FeatureTables> stored_feature_tables(std::span<const StoredTensor> preprocessor,
                                            const FeatureSettings& settings, const std::string& name) {
  FeatureTables out;
  for (const StoredTensor& tensor : preprocessor) {
    const bool window = tensor.name.ends_with(".window"), filters = tensor.name.ends_with(".fb");
    if (!window && !filters) continue;
    const std::int64_t count = window ? settings.window() : settings.features * settings.bins();
    if (Status bad =
            take_table(tensor, static_cast<std::size_t>(count), name, window ? out.window : out.filters);
        !bad.ok())
      return bad;
  }
  return out;
}

}  // namespace octavo_train
