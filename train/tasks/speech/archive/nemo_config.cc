// Reads NeMo's model_config.yaml: the keys that determine Octavo's model and its features. An absent key has
// the default value of NeMo's constructors. Also writes the file for a model that no NeMo archive describes:
// one that was first trained here, or whose vocabulary, head or sizes differ from those of its first archive.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/schema.h"
#include "train/tasks/speech/archive/foreign_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

namespace octavo_train {
namespace {

using M = SpeechModelSettings;
using F = FeatureSettings;
using NemoJson = nlohmann::ordered_json;

std::string module_name(const std::string& name) { return "nemo.collections.asr.modules." + name; }

void add(ExternalConfigKeys& keys, const ExternalConfigKeys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
}

// Returns the key of the attention context. It must be `[-1, -1]` or a list of such pairs: every frame
// attends to all others.
ExternalConfigKey full_context() {
  ExternalConfigKey key = only("encoder.att_context_size", "[-1, -1]", "[-1, -1]");
  key.read = [one = key.read](const YamlNode& node, ExternalModelConfig& out) -> ForeignProblem {
    const bool nested = node.kind == YamlNode::Kind::list && !node.items.empty() &&
                        node.items[0].kind == YamlNode::Kind::list;
    if (!nested) return one(node, out);
    for (const YamlNode& pair : node.items) {
      if (ForeignProblem problem = one(pair, out)) return problem;
    }
    return std::nullopt;
  };
  return key;
}

ExternalConfigKeys nemo_encoder_keys() {
  return {
      class_name("encoder._target_", module_name("ConformerEncoder")),
      taken("encoder.feat_in", "", integer(8, 4096), &M::mel_bands),
      only("encoder.feat_out", "-1", "-1"),
      taken("encoder.n_layers", "", integer(1, 1024), &M::encoder_layers),
      taken("encoder.d_model", "", integer(1, kMostWidth), &M::width),
      only("encoder.subsampling", "striding", "\"dw_striding\""),
      only("encoder.subsampling_factor", "4", "8"),
      taken("encoder.subsampling_conv_channels", "-1", integer(-1, kMostWidth), &M::subsampling_channels),
      only("encoder.causal_downsampling", "false", "false"),
      only("encoder.reduction", "null", "null"),
      taken("encoder.ff_expansion_factor", "4", integer(1, 64), &ExternalModelConfig::feed_forward_factor),
      only("encoder.self_attention_model", "rel_pos", "\"rel_pos\""),
      taken("encoder.n_heads", "4", integer(1, 1024), &M::heads),
      full_context(),
      with_null(only("encoder.xscaling", "true", "false"), "false"),
      with_null(only("encoder.untie_biases", "true", "true"), "null"),
      taken("encoder.conv_kernel_size", "31", odd_number(999), &M::kernel),
      only("encoder.conv_norm_type", "batch_norm", "\"batch_norm\""),
      with_null(only("encoder.use_bias", "true", "false"), "false"),
      taken("encoder.dropout", "0.1", real(kFraction), &M::dropout),
      taken("encoder.dropout_pre_encoder", "0.1", real(kFraction), &M::input_dropout),
      left("encoder.dropout_emb", "0.1", "0.0"),
      taken("encoder.dropout_att", "0.0", real(kFraction), &M::attention_dropout),
      left("encoder.stochastic_depth_drop_prob", "0.0", "0.0"),
  };
}

ExternalConfigKeys transducer_keys() {
  return {
      class_name("decoder._target_", module_name("RNNTDecoder")),
      only("decoder.normalization_mode", "null", "null"),
      with_null(only("decoder.blank_as_pad", "true", "true"), "null"),
      taken("decoder.prednet.pred_hidden", "", integer(1, kMostWidth), &M::predictor_width),
      taken("decoder.prednet.pred_rnn_layers", "1", integer(1, 64), &M::predictor_layers),
      only("decoder.prednet.rnn_hidden_size", "-1", "-1"),
      taken("decoder.prednet.dropout", "0.0", real(kFraction), &M::predictor_dropout),
      class_name("joint._target_", module_name("RNNTJoint")),
      taken("joint.jointnet.joint_hidden", "", integer(1, kMostWidth), &M::joint_width),
      only("joint.jointnet.activation", "", "\"relu\""),
      taken("joint.jointnet.dropout", "0.0", real(kFraction), &M::joint_dropout),
      taken("rnnt_reduction", "mean_batch", quoted_word({"mean_batch", "mean", "mean_volume"}),
            &M::reduction),
  };
}

ExternalConfigKeys loss_keys(SpeechHead head) {
  const std::string options = head == SpeechHead::tdt ? "loss.tdt_kwargs." : "loss.warprnnt_numba_kwargs.";
  ExternalConfigKeys keys = {
      left(options + "fastemit_lambda", "0.0", "0.0"),
      left(options + "clamp", "-1.0", "-1.0"),
  };
  if (head != SpeechHead::tdt) return keys;
  keys.push_back(taken(options + "durations", "", duration_list(), &M::durations));
  keys.push_back(taken(options + "sigma", "0.0", real({0, 100}), &M::sigma));
  keys.push_back(taken(options + "omega", "0.0", real(kFraction), &M::omega));
  return keys;
}

ExternalConfigKeys ctc_keys() {
  return {class_name("decoder._target_", module_name("ConvASRDecoder")),
          taken("ctc_reduction", "mean_batch", quoted_word({"mean_batch", "mean", "mean_volume"}),
                &M::reduction)};
}

SpeechHead head_of(const YamlNode& root) {
  if (text_at(root, "decoder._target_").ends_with("ConvASRDecoder")) return SpeechHead::ctc;
  return text_at(root, "loss.loss_name") == "tdt" ? SpeechHead::tdt : SpeechHead::rnnt;
}

// Reads the size of the vocabulary. A config may have it under several keys, which must agree.
Status read_vocabulary(const YamlNode& root, const Source& source, std::int64_t& vocabulary) {
  constexpr std::array<std::string_view, 6> kPlaces = {"labels",
                                                       "joint.vocabulary",
                                                       "decoder.vocabulary",
                                                       "decoder.vocab_size",
                                                       "joint.num_classes",
                                                       "decoder.num_classes"};
  std::string_view known;
  for (const std::string_view place : kPlaces) {
    const YamlNode* node = find_node(root, place, false);
    if (node == nullptr) continue;
    const bool list = node->kind == YamlNode::Kind::list;
    const std::optional<std::int64_t> count =
        list ? static_cast<std::int64_t>(node->items.size()) : integer(-1, 1 << 24).read(*node);
    if (!count || *count == 0) {
      return refuse_key(root, source, place,
                        fmt::format("got {}, expected tokens or their number", shown(*node)));
    }
    if (*count == -1) continue;  // in NeMo's configs -1 means: set by the tokenizer
    if (!known.empty() && *count != vocabulary) {
      return invalid_error("{}: {} has {} tokens, but {} has {}", at(source, node->place), place, *count,
                           known, vocabulary);
    }
    vocabulary = *count;
    known = place;
  }
  if (!known.empty()) return {};
  return Status::invalid(source.name +
                         ": no labels and no decoder.vocab_size, so the size of the vocabulary is unknown");
}

// Returns the token `<pad>`, or blank if there is no such token, as transformers does for RNN-T.
std::int64_t pad_of(const YamlNode& root, const SpeechModelSettings& model) {
  const YamlNode* labels = find_node(root, "labels");
  if (labels == nullptr) return model.blank();
  const auto found = std::ranges::find(labels->items, "<pad>", &YamlNode::text);
  return found == labels->items.end() ? model.blank() : found - labels->items.begin();
}

// Reads max_symbols under either of NeMo's names. In NeMo, null or a missing key means no limit. Octavo
// always has a limit, so that case adds a note.
Status read_max_symbols(const YamlNode& root, const Source& source, ExternalModelConfig& out) {
  if (find_node(root, "decoding.greedy", false) == nullptr) return {};
  const Codec<std::int64_t> codec = integer(1, kMostSymbols);
  for (const char* path : {"decoding.greedy.max_symbols", "decoding.greedy.max_symbols_per_step"}) {
    const YamlNode* node = find_node(root, path, false);
    if (node == nullptr) continue;
    const auto value = codec.read(*node);
    if (!value)
      return refuse_key(root, source, path, fmt::format("got {}, expected {}", shown(*node), codec.expected));
    out.model.max_symbols = *value;
    return {};
  }
  out.notes.push_back(
      fmt::format("decoding.greedy.max_symbols is not given, which NeMo reads as no limit; here it is {} "
                  "tokens at one frame",
                  out.model.max_symbols));
  return {};
}

// Checks the conditions that involve two keys.
Status check_together(const YamlNode& root, const Source& source, const SpeechModelSettings& model) {
  RETURN_IF_ERROR(check_heads(root, source, "encoder.n_heads", model));
  if (const YamlNode* context = find_node(root, "encoder.conv_context_size", false); context != nullptr) {
    const std::string half = std::to_string((model.kernel - 1) / 2);
    const bool centred =
        context->items.size() == 2 && context->items[0].text == half && context->items[1].text == half;
    if (!centred)
      return refuse_key(
          root, source, "encoder.conv_context_size",
          fmt::format("got {}, expected null: a convolution around its frame", shown(*context)));
  }
  if (model.head == SpeechHead::ctc) return {};
  const YamlNode* extra = find_node(root, "joint.num_extra_outputs");
  const std::string wanted = std::to_string(model.head == SpeechHead::tdt ? model.durations.size() : 0);
  if ((extra != nullptr && extra->kind == YamlNode::Kind::scalar ? extra->text : "0") == wanted) return {};
  return refuse_key(root, source, "joint.num_extra_outputs",
                    fmt::format("got {}, expected {}, one for each duration",
                                extra != nullptr ? shown(*extra) : "nothing", wanted));
}

// Returns the keys that define the model.
ExternalConfigKeys nemo_model_keys(SpeechHead head) {
  ExternalConfigKeys keys = nemo_encoder_keys();
  add(keys, head == SpeechHead::ctc ? ctc_keys() : transducer_keys());
  if (head != SpeechHead::ctc) add(keys, loss_keys(head));
  return keys;
}

// Returns the keys of the section `preprocessor`.
ExternalConfigKeys nemo_feature_keys() {
  const std::string in = "preprocessor.";
  const auto seconds = real({.low = 0, .high = 3600});
  return {
      class_name(in + "_target_", module_name("AudioToMelSpectrogramPreprocessor")),
      taken(in + "sample_rate", "16000", integer(1, 1 << 24), &F::sample_rate),
      taken(in + "window_size", "0.02", seconds, &F::window_size),
      taken(in + "window_stride", "0.01", seconds, &F::window_stride),
      only(in + "n_window_size", "null", "null"),
      only(in + "n_window_stride", "null", "null"),
      with_null(only(in + "window", "hann", "\"hann\""), "null"),
      with_null(only(in + "normalize", "per_feature", "\"per_feature\""), "null"),
      taken(in + "n_fft", "0", integer(0, 1 << 20), &F::n_fft),
      with_null(taken(in + "preemph", "0.97", real({.low = 0, .high = 1}), &F::preemph), "0.0"),
      taken(in + "features", "64", integer(1, 4096), &F::features),
      taken(in + "lowfreq", "0", real(kNotNegative), &F::lowfreq),
      taken(in + "highfreq", "0", real(kNotNegative), &F::highfreq),
      with_null(only(in + "log", "true", "true"), "null"),
      only(in + "log_zero_guard_type", "add", "\"add\""),
      taken(in + "log_zero_guard_value", "5.9604644775390625e-08", real(kPositive), &F::log_zero_guard_value),
      taken(in + "dither", "1e-05", real(kNotNegative), &F::dither),
      only(in + "frame_splicing", "1", "1"),
      only(in + "exact_pad", "false", "false"),
      only(in + "mag_power", "2.0", "2.0"),
      only(in + "mel_norm", "slaney", "\"slaney\""),
      taken(in + "pad_to", "16", integer(0, 1 << 16), &F::pad_to),
      left(in + "nb_augmentation_prob", "0.0", "0.0"),
  };
}

// Reads the section `preprocessor` into out.features. A config without the section means the default
// features, with the number of mel bands of the model.
Status read_nemo_features(const YamlNode& root, const Source& source, ExternalModelConfig& out) {
  if (find_node(root, "preprocessor", false) == nullptr) {
    out.features.features = out.model.mel_bands;
    return {};
  }
  RETURN_IF_ERROR(read_keys(root, source, nemo_feature_keys(), out));
  F& features = out.features;
  // NeMo's default n_fft is the smallest power of two that holds the window.
  if (features.n_fft == 0)
    features.n_fft = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(features.window(), 1))));
  RETURN_IF_ERROR(with_context(source.name, check_features(features)));
  if (features.features == out.model.mel_bands) return {};
  return refuse_key(root, source, "preprocessor.features",
                    fmt::format("got {}, expected {}, the bands that the encoder takes", features.features,
                                out.model.mel_bands));
}

ExternalConfigKey key(std::string path, const NemoJson& value) {
  return only(std::move(path), "", value.dump());
}

// Returns the keys that NeMo's constructors require besides the model's own sizes.
ExternalConfigKeys transducer_extras(const SpeechModelSettings& model, const NemoJson& labels) {
  const bool tdt = model.head == SpeechHead::tdt;
  ExternalConfigKeys out = {
      key("model_defaults.enc_hidden", model.width),
      key("model_defaults.pred_hidden", model.predictor_width),
      key("model_defaults.joint_hidden", model.joint_width),
      key("decoder.random_state_sampling", false),
      key("decoder.vocab_size", model.vocabulary),
      key("joint.log_softmax", nullptr),
      key("joint.preserve_memory", false),
      key("joint.fuse_loss_wer", true),
      key("joint.fused_batch_size", 4),
      key("joint.jointnet.encoder_hidden", model.width),
      key("joint.jointnet.pred_hidden", model.predictor_width),
      key("joint.num_classes", model.vocabulary),
      key("joint.vocabulary", labels),
      key("decoding.strategy", "greedy_batch"),
      key("decoding.greedy.max_symbols", model.max_symbols),
      key("loss.loss_name", tdt ? "tdt" : "default"),
      key("labels", labels),
      key("target", "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel"),
  };
  if (!tdt) return out;
  const auto durations = static_cast<std::int64_t>(model.durations.size());
  out.push_back(key("model_defaults.tdt_durations", model.durations));
  out.push_back(key("model_defaults.num_tdt_durations", durations));
  out.push_back(key("joint.num_extra_outputs", durations));
  out.push_back(key("decoding.model_type", "tdt"));
  out.push_back(key("decoding.durations", model.durations));
  return out;
}

ExternalConfigKeys ctc_extras(const SpeechModelSettings& model, const NemoJson& labels) {
  return {key("decoder.feat_in", model.width), key("decoder.num_classes", model.vocabulary),
          key("decoder.vocabulary", labels), key("decoding.strategy", "greedy_batch"),
          key("target", "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE")};
}

// Returns NeMo's default training keys, which its training scripts overwrite. Both sections are needed:
// NeMo's transcribe() reads validation_ds, and a training script sets the manifests in both.
ExternalConfigKeys training_keys(std::int64_t sample_rate) {
  ExternalConfigKeys out;
  for (const bool train : {true, false}) {
    const std::string in = train ? "train_ds." : "validation_ds.";
    add(out, {key(in + "manifest_filepath", nullptr), key(in + "sample_rate", sample_rate),
              key(in + "batch_size", 16), key(in + "shuffle", train), key(in + "num_workers", 8),
              key(in + "pin_memory", true), key(in + "use_start_end_token", false)});
    if (train) add(out, {key(in + "max_duration", 20), key(in + "min_duration", 0.1)});
  }
  add(out, {key("spec_augment._target_", "nemo.collections.asr.modules.SpectrogramAugmentation"),
            key("spec_augment.freq_masks", 2), key("spec_augment.time_masks", 10),
            key("spec_augment.freq_width", 27), key("spec_augment.time_width", 0.05),
            key("optim.name", "adamw"), key("optim.lr", 1e-4),
            key("optim.betas", NemoJson::array({0.9, 0.98})), key("optim.weight_decay", 1e-3)});
  return out;
}

}  // namespace

Result<SpeechConfig> read_nemo_config(std::string_view yaml, const std::string& name) {
  const Source source{name};
  ASSIGN_OR_RETURN(const YamlNode root, read_yaml(yaml, source));
  // Another architecture lacks many of the keys. An error with its class name is clearer than one about a
  // missing key.
  if (!text_at(root, "encoder._target_").ends_with(".ConformerEncoder")) {
    const std::string target = text_at(root, "target");
    return invalid_error(
        "{}: it is {} with the encoder {}, expected a model with a ConformerEncoder, such as Parakeet", name,
        target.empty() ? "another model" : "a " + target, shown(text_at(root, "encoder._target_")));
  }
  ExternalModelConfig found;
  found.model.head = head_of(root);
  RETURN_IF_ERROR(read_keys(root, source, nemo_model_keys(found.model.head), found));
  M& model = found.model;
  model.feed_forward = model.width * found.feed_forward_factor;
  if (model.subsampling_channels < 1) model.subsampling_channels = model.width;
  RETURN_IF_ERROR(read_vocabulary(root, source, model.vocabulary));
  RETURN_IF_ERROR(check_together(root, source, model));
  RETURN_IF_ERROR(read_nemo_features(root, source, found));
  if (model.head != SpeechHead::ctc) RETURN_IF_ERROR(read_max_symbols(root, source, found));
  found.pad = pad_of(root, model);
  found.hybrid = find_node(root, "aux_ctc") != nullptr;
  if (found.hybrid) {
    found.notes.push_back(
        "the archive is a hybrid of a transducer and CTC: the transducer is used, the CTC head (aux_ctc) is "
        "neither trained nor exported");
  }
  return SpeechConfig(std::move(found));
}

Result<std::string> nemo_config(const SpeechModelSettings& model, const FeatureSettings& features,
                                std::span<const std::string> pieces, const NamedFiles& files) {
  if (model.feed_forward % model.width != 0) {
    return unsupported_error(
        "NeMo has feed-forward layers of a multiple of the width; the model has {} and {}: write "
        "a folder of transformers",
        model.feed_forward, model.width);
  }
  const NemoJson labels(std::vector<std::string>(pieces.begin(), pieces.end()));
  ExternalConfigKeys keys = {key("sample_rate", features.sample_rate)};
  add(keys, nemo_feature_keys());
  keys.push_back(key("tokenizer.dir", "tokenizer"));
  keys.push_back(key("tokenizer.type", "bpe"));
  for (const auto& [name, file] : files) keys.push_back(key("tokenizer." + name, "nemo:" + file));
  add(keys, nemo_model_keys(model.head));
  add(keys, model.head == SpeechHead::ctc ? ctc_extras(model, labels) : transducer_extras(model, labels));
  add(keys, training_keys(features.sample_rate));
  ExternalModelConfig from;
  from.model = model;
  from.features = features;
  from.feed_forward_factor = model.feed_forward / model.width;
  return write_keys(keys, from);
}

}  // namespace octavo_train
