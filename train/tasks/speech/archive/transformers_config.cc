// Reads and writes transformers' config.json: the keys that determine Octavo's model. An absent key has the
// default value of transformers' config classes, because transformers writes only values that differ from it.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/schema.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/config_keys.h"

#include <algorithm>
#include <array>

namespace octavo_train {
namespace {

using M = SpeechModelSettings;
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

std::vector<ExternalConfigKey> encoder_keys() {
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

std::vector<ExternalConfigKey> head_keys(SpeechHead head) {
  if (head == SpeechHead::ctc) {
    return {taken("vocab_size", "1025", tokens_and_blank(), &M::vocabulary),
            taken("pad_token_id", "1024", integer(0, kMostTokens), &ExternalModelConfig::blank)};
  }
  std::vector<ExternalConfigKey> keys = {
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

std::vector<ExternalConfigKey> all_keys(SpeechHead head) {
  std::vector<ExternalConfigKey> keys = head_keys(head);
  for (ExternalConfigKey& key : encoder_keys()) keys.push_back(std::move(key));
  return keys;
}

}  // namespace

Result<SpeechConfig> read_transformers_config(std::string_view json, const std::string& name) {
  const Source source{name};
  const Result<YamlNode> root = read_yaml(json, source);
  if (!root.ok()) return root.status();
  const YamlNode* type = find_node(*root, "model_type");
  const auto* kind = std::ranges::find(kKinds, type != nullptr ? type->text : std::string(), &Kind::type);
  if (kind == kKinds.end()) {
    return Status::invalid((type != nullptr ? at(source, type->place) : name) + ": model_type is " +
                           (type != nullptr ? shown(type->text) : "missing") +
                           ", expected parakeet_tdt, parakeet_rnnt or parakeet_ctc: it is another model");
  }
  ExternalModelConfig found;
  found.model.head = kind->head;
  RETURN_IF_ERROR(read_keys(*root, source, all_keys(kind->head), found));
  M& model = found.model;
  RETURN_IF_ERROR(check_heads(*root, source, "encoder_config.num_attention_heads", model));
  model.joint_width = model.predictor_width;  // transformers has one size for both
  if (found.blank != model.blank()) {
    return Status::invalid(name + ": blank is token " + std::to_string(found.blank) + ", expected " +
                           std::to_string(model.blank()) + ", the last of vocab_size");
  }
  if (found.activation_dropout != model.dropout) {
    found.notes.push_back(
        "encoder_config.activation_dropout is not encoder_config.dropout, which the model here takes for "
        "both");
  }
  const std::int64_t pad = model.head == SpeechHead::ctc ? model.blank() : found.pad;
  return SpeechConfig{std::move(found.model), pad, std::move(found.notes)};
}

Result<std::string> transformers_config(const SpeechConfig& config, std::string_view dtype) {
  const SpeechModelSettings& model = config.model;
  if (model.head != SpeechHead::ctc && model.joint_width != model.predictor_width) {
    return Status::unsupported("transformers has one size for predictor and joint; the model has " +
                               std::to_string(model.predictor_width) + " and " +
                               std::to_string(model.joint_width));
  }
  const auto* kind = std::ranges::find(kKinds, model.head, &Kind::head);
  ExternalModelConfig from;
  from.model = model;
  from.blank = model.blank();
  from.pad = config.pad;
  from.activation_dropout = model.dropout;
  std::vector<ExternalConfigKey> keys = {
      only("architectures", "", "[" + quoted(kind->model) + "]"),
      only("model_type", "", quoted(kind->type)),
      only("dtype", "", quoted(dtype)),
  };
  for (ExternalConfigKey& key : all_keys(model.head)) keys.push_back(std::move(key));
  return write_keys(keys, from);
}

}  // namespace octavo_train
