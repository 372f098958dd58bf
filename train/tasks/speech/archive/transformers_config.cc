// Reads and writes transformers' config.json and preprocessor_config.json: the keys that determine Octavo's
// model and its features. An absent key has the default value of transformers' config classes, because
// transformers writes only values that differ from it.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/schema.h"
#include "train/tasks/speech/archive/foreign_config.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace octavo_train {
namespace {

using M = SpeechModelSettings;
using F = FeatureSettings;
constexpr std::int64_t kMostTokens = 1 << 24;

struct Kind {
  SpeechHead head;
  std::string_view type;   // model_type
  std::string_view model;  // in architectures
};
constexpr std::array<Kind, 3> kKinds = {{
    {SpeechHead::tdt, "parakeet_tdt", "ParakeetForTDT"},
    {SpeechHead::rnnt, "parakeet_rnnt", "ParakeetForRNNT"},
    {SpeechHead::ctc, "parakeet_ctc", "ParakeetForCTC"},
}};

std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

// Returns the codec of transformers' vocab_size, which counts blank. The value in memory does not.
Codec<std::int64_t> tokens_and_blank() {
  const Codec<std::int64_t> count = integer(2, kMostTokens);
  return {count.expected,
          [count](const YamlNode& node) {
            const auto value = count.read(node);
            return value ? std::optional<std::int64_t>(*value - 1) : std::nullopt;
          },
          [](const std::int64_t& value) { return std::to_string(value + 1); }};
}

ExternalConfigKeys encoder_keys() {
  const std::string in = "encoder_config.";
  return {
      only(in + "model_type", "parakeet_encoder", quoted("parakeet_encoder")),
      taken(in + "hidden_size", "1024", integer(1, kMostWidth), &M::width),
      taken(in + "num_hidden_layers", "24", integer(1, 1024), &M::encoder_layers),
      taken(in + "num_attention_heads", "8", integer(1, 1024), &M::heads),
      taken(in + "intermediate_size", "4096", integer(1, 64 * kMostWidth), &M::feed_forward),
      only(in + "hidden_act", "silu", quoted("silu")),
      only(in + "attention_bias", "true", "false"),
      only(in + "convolution_bias", "true", "false"),
      taken(in + "conv_kernel_size", "9", odd_number(999), &M::kernel),
      only(in + "subsampling_factor", "8", "8"),
      taken(in + "subsampling_conv_channels", "256", integer(1, kMostWidth), &M::subsampling_channels),
      taken(in + "num_mel_bins", "80", integer(8, 4096), &M::mel_bands),
      only(in + "subsampling_conv_kernel_size", "3", "3"),
      only(in + "subsampling_conv_stride", "2", "2"),
      taken(in + "dropout", "0.1", real(kFraction), &M::dropout),
      left(in + "dropout_positions", "0.0", "0.0"),
      left(in + "layerdrop", "0.1", "0.0"),
      taken(in + "activation_dropout", "0.1", real(kFraction), &ExternalModelConfig::activation_dropout),
      taken(in + "attention_dropout", "0.1", real(kFraction), &M::attention_dropout),
      only(in + "scale_input", "true", "false"),
  };
}

ExternalConfigKeys head_keys(SpeechHead head) {
  if (head == SpeechHead::ctc) {
    return {taken("vocab_size", "1025", tokens_and_blank(), &M::vocabulary),
            taken("pad_token_id", "1024", integer(0, kMostTokens), &ExternalModelConfig::blank)};
  }
  ExternalConfigKeys keys = {
      taken("vocab_size", "8193", tokens_and_blank(), &M::vocabulary),
      taken("decoder_hidden_size", "640", integer(1, kMostWidth), &M::predictor_width),
      taken("num_decoder_layers", "2", integer(1, 64), &M::predictor_layers),
      only("hidden_act", "relu", quoted("relu")),
      taken("pad_token_id", "2", integer(0, kMostTokens), &ExternalModelConfig::pad),
      taken("blank_token_id", "8192", integer(0, kMostTokens), &ExternalModelConfig::blank),
      taken("max_symbols_per_step", "10", integer(1, kMostSymbols), &M::max_symbols),
  };
  if (head == SpeechHead::tdt)
    keys.push_back(taken("durations", "[0, 1, 2, 3, 4]", duration_list(), &M::durations));
  return keys;
}

ExternalConfigKeys all_keys(SpeechHead head) {
  ExternalConfigKeys keys = head_keys(head);
  std::ranges::move(encoder_keys(), std::back_inserter(keys));
  return keys;
}

ExternalConfigKeys transformers_feature_keys(const std::string& in) {
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

}  // namespace

Result<SpeechConfig> read_transformers_config(std::string_view json, const std::string& name) {
  const Source source{name};
  ASSIGN_OR_RETURN(const YamlNode root, read_yaml(json, source));
  const YamlNode* type = find_node(root, "model_type");
  const auto* kind = std::ranges::find(kKinds, type != nullptr ? type->text : std::string(), &Kind::type);
  if (kind == kKinds.end()) {
    return invalid_error(
        "{}: model_type is {}, expected parakeet_tdt, parakeet_rnnt or parakeet_ctc: it is another model",
        type != nullptr ? at(source, type->place) : name, type != nullptr ? shown(type->text) : "missing");
  }
  ExternalModelConfig found;
  found.model.head = kind->head;
  RETURN_IF_ERROR(read_keys(root, source, all_keys(kind->head), found));
  M& model = found.model;
  RETURN_IF_ERROR(check_heads(root, source, "encoder_config.num_attention_heads", model));
  model.joint_width = model.predictor_width;  // transformers has one size for both
  if (found.blank != model.blank()) {
    return invalid_error("{}: blank is token {}, expected {}, the last of vocab_size", name, found.blank,
                         model.blank());
  }
  if (found.activation_dropout != model.dropout) {
    found.notes.push_back(
        "encoder_config.activation_dropout is not encoder_config.dropout, which the model here takes for "
        "both");
  }
  if (model.head == SpeechHead::ctc) found.pad = model.blank();
  return SpeechConfig(std::move(found));
}

Result<std::string> transformers_config(const SpeechConfig& config, std::string_view dtype) {
  const SpeechModelSettings& model = config.model;
  if (model.head != SpeechHead::ctc && model.joint_width != model.predictor_width) {
    return unsupported_error("transformers has one size for predictor and joint; the model has {} and {}",
                             model.predictor_width, model.joint_width);
  }
  const auto* kind = std::ranges::find(kKinds, model.head, &Kind::head);
  ExternalModelConfig from;
  from.model = model;
  from.blank = model.blank();
  from.pad = config.pad;
  from.activation_dropout = model.dropout;
  ExternalConfigKeys keys = {
      only("architectures", "", "[" + quoted(kind->model) + "]"),
      only("model_type", "", quoted(kind->type)),
      only("dtype", "", quoted(dtype)),
  };
  std::ranges::move(all_keys(model.head), std::back_inserter(keys));
  return write_keys(keys, from);
}

Result<FeatureSettings> read_transformers_features(std::string_view json, const std::string& prefix,
                                                   const std::string& name) {
  const Source source{name};
  ASSIGN_OR_RETURN(const YamlNode root, read_yaml(json, source));
  ExternalModelConfig found;
  RETURN_IF_ERROR(read_keys(root, source, transformers_feature_keys(prefix), found));
  F& out = found.features;
  const auto rate = static_cast<double>(out.sample_rate);
  out.window_size = static_cast<double>(found.win_length) / rate;
  out.window_stride = static_cast<double>(found.hop_length) / rate;
  RETURN_IF_ERROR(with_context(name, check_features(out)));
  return out;
}

Result<std::string> transformers_features(const FeatureSettings& settings) {
  const FeatureSettings standard;
  if (settings.lowfreq != 0 ||
      (settings.highfreq != 0 && 2 * settings.highfreq != static_cast<double>(settings.sample_rate)) ||
      settings.log_zero_guard_value != standard.log_zero_guard_value) {
    return Status::unsupported(
        "transformers' features go from 0 Hz to half the rate and add 2^-24 before the logarithm, those of "
        "the model do not: write a .nemo archive");
  }
  ExternalModelConfig from;
  from.features = settings;
  from.hop_length = settings.hop();
  from.win_length = settings.window();
  ExternalConfigKeys keys = transformers_feature_keys("");
  keys.push_back(only("processor_class", "", "\"ParakeetProcessor\""));
  return write_keys(keys, from);
}

}  // namespace octavo_train
