// Reads NeMo's model_config.yaml: the keys that determine Octavo's model. An absent key has the default value
// of NeMo's constructors.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/nemo_config.h"
#include "train/base/status.h"
#include "train/config/schema.h"
#include "train/tasks/speech/archive/archive.h"
#include "train/tasks/speech/archive/archive_features.h"
#include "train/tasks/speech/archive/config_keys.h"

#include <algorithm>
#include <array>
#include <optional>

namespace octavo_train {
namespace {

using M = SpeechModelSettings;
constexpr std::string_view kModules = "nemo.collections.asr.modules.";

std::string module_name(std::string_view name) { return std::string(kModules) + std::string(name); }

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

std::vector<ExternalConfigKey> encoder_keys() {
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

std::vector<ExternalConfigKey> transducer_keys() {
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

std::vector<ExternalConfigKey> loss_keys(SpeechHead head) {
  const std::string options = head == SpeechHead::tdt ? "loss.tdt_kwargs." : "loss.warprnnt_numba_kwargs.";
  std::vector<ExternalConfigKey> keys = {
      left(options + "fastemit_lambda", "0.0", "0.0"),
      left(options + "clamp", "-1.0", "-1.0"),
  };
  if (head != SpeechHead::tdt) return keys;
  keys.push_back(taken(options + "durations", "", duration_list(), &M::durations));
  keys.push_back(taken(options + "sigma", "0.0", real({0, 100}), &M::sigma));
  keys.push_back(taken(options + "omega", "0.0", real(kFraction), &M::omega));
  return keys;
}

std::vector<ExternalConfigKey> ctc_keys() {
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
    const YamlNode* node = find_node(root, place);
    if (node == nullptr || node->kind == YamlNode::Kind::null) continue;
    const bool list = node->kind == YamlNode::Kind::list;
    const std::optional<std::int64_t> count =
        list ? static_cast<std::int64_t>(node->items.size()) : integer(-1, 1 << 24).read(*node);
    if (!count || *count == 0) {
      return Status::invalid(at(source, node->place) + ": " + std::string(place) + ": got " + shown(*node) +
                             ", expected tokens or their number");
    }
    if (*count == -1) continue;  // in NeMo's configs -1 means: set by the tokenizer
    if (!known.empty() && *count != vocabulary) {
      return Status::invalid(at(source, node->place) + ": " + std::string(place) + " has " +
                             std::to_string(*count) + " tokens, but " + std::string(known) + " has " +
                             std::to_string(vocabulary));
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
  const YamlNode* greedy = find_node(root, "decoding.greedy");
  if (greedy == nullptr || greedy->kind == YamlNode::Kind::null) return {};
  const Codec<std::int64_t> codec = integer(1, kMostSymbols);
  for (const char* path : {"decoding.greedy.max_symbols", "decoding.greedy.max_symbols_per_step"}) {
    const YamlNode* node = find_node(root, path);
    if (node == nullptr || node->kind == YamlNode::Kind::null) continue;
    const auto value = codec.read(*node);
    if (!value) return refuse_key(root, source, path, "got " + shown(*node) + ", expected " + codec.expected);
    out.model.max_symbols = *value;
    return {};
  }
  out.notes.push_back("decoding.greedy.max_symbols is not given, which NeMo reads as no limit; here it is " +
                      std::to_string(out.model.max_symbols) + " tokens at one frame");
  return {};
}

// Checks the conditions that involve two keys.
Status check_together(const YamlNode& root, const Source& source, const SpeechModelSettings& model) {
  RETURN_IF_ERROR(check_heads(root, source, "encoder.n_heads", model));
  if (const YamlNode* context = find_node(root, "encoder.conv_context_size");
      context != nullptr && context->kind != YamlNode::Kind::null) {
    const std::string half = std::to_string((model.kernel - 1) / 2);
    const bool centred =
        context->items.size() == 2 && context->items[0].text == half && context->items[1].text == half;
    if (!centred)
      return refuse_key(root, source, "encoder.conv_context_size",
                        "got " + shown(*context) + ", expected null: a convolution around its frame");
  }
  if (model.head == SpeechHead::ctc) return {};
  const YamlNode* extra = find_node(root, "joint.num_extra_outputs");
  const std::string wanted = std::to_string(model.head == SpeechHead::tdt ? model.durations.size() : 0);
  if ((extra != nullptr && extra->kind == YamlNode::Kind::scalar ? extra->text : "0") == wanted) return {};
  return refuse_key(root, source, "joint.num_extra_outputs",
                    "got " + (extra != nullptr ? shown(*extra) : "nothing") + ", expected " + wanted +
                        ", one for each duration");
}

}  // namespace

std::vector<ExternalConfigKey> nemo_model_keys(SpeechHead head) {
  std::vector<ExternalConfigKey> keys = encoder_keys();
  const auto add = [&](const std::vector<ExternalConfigKey>& more) {
    keys.insert(keys.end(), more.begin(), more.end());
  };
  if (head == SpeechHead::ctc) {
    add(ctc_keys());
  } else {
    add(transducer_keys());
    add(loss_keys(head));
  }
  return keys;
}

Result<SpeechConfig> read_nemo_config(std::string_view yaml, const std::string& name) {
  const Source source{name};
  const Result<YamlNode> root = read_yaml(yaml, source);
  if (!root.ok()) return root.status();
  // Another architecture lacks many of the keys. An error with its class name is clearer than one about a
  // missing key.
  if (!text_at(*root, "encoder._target_").ends_with(".ConformerEncoder")) {
    const std::string target = text_at(*root, "target");
    return Status::invalid(name + ": it is " + (target.empty() ? "another model" : "a " + target) +
                           " with the encoder " + shown(text_at(*root, "encoder._target_")) +
                           ", expected a model with a ConformerEncoder, such as Parakeet");
  }
  ExternalModelConfig found;
  found.model.head = head_of(*root);
  const std::vector<ExternalConfigKey> keys = nemo_model_keys(found.model.head);
  RETURN_IF_ERROR(read_keys(*root, source, keys, found));
  M& model = found.model;
  model.feed_forward = model.width * found.feed_forward_factor;
  if (model.subsampling_channels < 1) model.subsampling_channels = model.width;
  RETURN_IF_ERROR(read_vocabulary(*root, source, model.vocabulary));
  RETURN_IF_ERROR(check_together(*root, source, model));
  RETURN_IF_ERROR(read_nemo_features(*root, source, found));
  if (model.head != SpeechHead::ctc) {
    RETURN_IF_ERROR(read_max_symbols(*root, source, found));
  }
  const std::int64_t pad = pad_of(*root, model);
  const bool hybrid = find_node(*root, "aux_ctc") != nullptr;
  if (hybrid) {
    found.notes.push_back(
        "the archive is a hybrid of a transducer and CTC: the transducer is used, the CTC head (aux_ctc) is "
        "neither trained nor exported");
  }
  return SpeechConfig{std::move(found.model), pad, std::move(found.notes), found.features, hybrid};
}

}  // namespace octavo_train
