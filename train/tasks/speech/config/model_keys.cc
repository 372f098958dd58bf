// The config keys of the speech model. See keys.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/config/keys.h"

#include "train/tasks/speech/config/codecs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

using K = SpeechKeys;

Codec<SpeechHead> heads() {
  return choice<SpeechHead>({{SpeechHead::tdt, "tdt"}, {SpeechHead::rnnt, "rnnt"}, {SpeechHead::ctc, "ctc"}});
}

// A model's name, a hub id, or a path. A path is resolved like the other paths of a config.
Codec<std::string> model_name() {
  Codec<std::string> codec = text("the name of a model, a hub id or a path");
  codec.paths = [](std::string& value) {
    return is_model_path(value) ? std::vector<std::string*>{&value} : std::vector<std::string*>();
  };
  return codec;
}

// Removes the owner from a hub id. The sizes do not depend on the owner.
std::string_view without_owner(std::string_view name) { return name.substr(name.rfind('/') + 1); }

SpeechModelSettings small_model() {
  SpeechModelSettings out;
  out.mel_bands = 80;
  out.subsampling_channels = 32;
  out.encoder_layers = 4;
  out.width = 128;
  out.heads = 4;
  out.feed_forward = 512;
  out.vocabulary = 64;
  out.predictor_width = out.joint_width = 128;
  out.predictor_layers = 1;
  return out;
}

}  // namespace

bool is_speech_model(std::string_view name) {
  std::string low(name);
  std::ranges::transform(low, low.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return low.find("parakeet") != std::string::npos || low.find(kFastConformer) != std::string::npos ||
         is_model_path(low);  // no other task has models in files
}

bool is_model_path(std::string_view name) {
  return name.starts_with('/') || name.starts_with("./") || name.starts_with("../") ||
         name.ends_with(".nemo");
}

std::vector<Key> speech_model_keys() {
  const auto sizes = integer(1, kMaxSize);
  const auto chance = real(kFraction);
  const auto reductions = word({"mean_batch", "mean", "mean_volume"});
  return {
      {"model.name", Setting{field(&ModelSettings::name, model_name()), kFastConformer},
       "fastconformer: a model with the sizes below, small where they are null; or a model in files, with "
       "the sizes in them: a .nemo archive, a folder of transformers, or the name of a model of the hub that "
       "has been downloaded, such as nvidia/parakeet-tdt-0.6b-v3"},
      {"model.pretrained", Setting{field(&K::pretrained, flag()), "true"},
       "true: start with the weights in the model's files; false: start with random weights, in the sizes of "
       "parakeet-tdt-0.6b-v2 or -v3, without files"},
      {"model.head", Setting{field(&K::head, heads()), "null"},
       "head after the encoder: tdt: a transducer that predicts tokens and durations; rnnt: a transducer "
       "that predicts tokens; ctc: CTC"},
      {"model.vocab_size", Setting{field(&K::vocab_size, sizes), "null"}, "number of tokens, without blank"},
      {"model.gradient_checkpointing", Setting{field(&K::gradient_checkpointing, flag()), "false"},
       "recompute activations in the backward pass instead of keeping them: slower, less memory",
       Effect::none},
      {"model.freeze_batch_norm", Setting{field(&K::freeze_batch_norm, flag()), "false"},
       "BatchNorm uses its running statistics in training too and does not update them; for small batches"},
      {"model.encoder.feat_in", Setting{field(&K::feat_in, sizes), "null"}, "mel bands of the features"},
      {"model.encoder.subsampling_conv_channels",
       Setting{field(&K::subsampling_conv_channels, sizes), "null"},
       "channels of the convolutions that reduce eight frames to one"},
      {"model.encoder.n_layers", Setting{field(&K::n_layers, integer(1, 4096)), "null"}, "layers"},
      {"model.encoder.d_model", Setting{field(&K::d_model, sizes), "null"}, "width of a frame"},
      {"model.encoder.n_heads", Setting{field(&K::n_heads, integer(1, 4096)), "null"}, "attention heads"},
      {"model.encoder.ff_expansion_factor", Setting{field(&K::ff_expansion_factor, integer(1, 256)), "null"},
       "width of a feed-forward layer, in units of d_model"},
      {"model.encoder.conv_kernel_size", Setting{field(&K::conv_kernel_size, odd_number(999)), "null"},
       "kernel size of a layer's convolution, in frames"},
      {"model.encoder.dropout", Setting{field(&K::dropout, chance), "null"},
       "dropout of the layers' branches and inside feed-forward layers"},
      {"model.encoder.dropout_pre_encoder", Setting{field(&K::dropout_pre_encoder, chance), "null"},
       "dropout of the first layer's input"},
      {"model.encoder.dropout_att", Setting{field(&K::dropout_att, chance), "null"},
       "dropout of attention's probabilities"},
      {"model.encoder.gradient_checkpointing", Setting{field(&K::encoder_checkpointing, flag()), "null"},
       "model.gradient_checkpointing for the encoder only; null: the value of model.gradient_checkpointing",
       Effect::none},
      {"model.decoder.pred_hidden", Setting{field(&K::pred_hidden, sizes), "null"},
       "width of the prediction network"},
      {"model.decoder.pred_rnn_layers", Setting{field(&K::pred_rnn_layers, integer(1, 64)), "null"},
       "layers of the prediction network"},
      {"model.decoder.dropout", Setting{field(&K::decoder_dropout, chance), "null"},
       "dropout of the prediction network"},
      {"model.decoder.gradient_checkpointing", Setting{field(&K::decoder_checkpointing, flag()), "null"},
       "model.gradient_checkpointing for the prediction network only; null: the value of "
       "model.gradient_checkpointing. The joint network is always recomputed",
       Effect::none},
      {"model.joint.joint_hidden", Setting{field(&K::joint_hidden, sizes), "null"},
       "width of the joint network"},
      {"model.joint.dropout", Setting{field(&K::joint_dropout, chance), "null"},
       "dropout of the joint network"},
      {"model.loss.durations", Setting{field(&K::durations, duration_list()), "null"},
       "numbers of frames by which a token can advance, with the head tdt"},
      {"model.loss.sigma", Setting{field(&K::sigma, real(kNotNegative)), "null"},
       "tdt: subtracted from every token's log-probability in the loss"},
      {"model.loss.omega", Setting{field(&K::omega, real({.low = 0, .high = 1})), "null"},
       "tdt: fraction of steps that use the loss of rnnt"},
      {"model.loss.reduction", Setting{field(&K::reduction, reductions), "null"},
       "mean_batch: mean over the clips; mean: mean of each clip's loss divided by its tokens; mean_volume: "
       "sum of the losses divided by the sum of tokens"},
  };
}

std::optional<SpeechModelSettings> known_speech_model(std::string_view name) {
  if (name == kFastConformer) return small_model();
  SpeechModelSettings parakeet;  // v3
  if (without_owner(name) == "parakeet-tdt-0.6b-v3") return parakeet;
  parakeet.vocabulary = 1024;
  if (without_owner(name) == "parakeet-tdt-0.6b-v2") return parakeet;
  return std::nullopt;
}

SpeechModelSettings with_speech_keys(SpeechModelSettings model, const SpeechKeys& keys) {
  const std::int64_t expansion = std::max<std::int64_t>(1, model.feed_forward / model.width);
  take(keys.head, model.head);
  take(keys.vocab_size, model.vocabulary);
  take(keys.feat_in, model.mel_bands);
  take(keys.subsampling_conv_channels, model.subsampling_channels);
  take(keys.n_layers, model.encoder_layers);
  take(keys.d_model, model.width);
  take(keys.n_heads, model.heads);
  if (keys.d_model || keys.ff_expansion_factor)
    model.feed_forward = model.width * keys.ff_expansion_factor.value_or(expansion);
  take(keys.conv_kernel_size, model.kernel);
  take(keys.dropout, model.dropout);
  take(keys.dropout_pre_encoder, model.input_dropout);
  take(keys.dropout_att, model.attention_dropout);
  take(keys.pred_hidden, model.predictor_width);
  take(keys.pred_rnn_layers, model.predictor_layers);
  take(keys.decoder_dropout, model.predictor_dropout);
  take(keys.joint_hidden, model.joint_width);
  take(keys.joint_dropout, model.joint_dropout);
  take(keys.durations, model.durations);
  take(keys.sigma, model.sigma);
  take(keys.omega, model.omega);
  take(keys.reduction, model.reduction);
  model.freeze_batch_norm = keys.freeze_batch_norm;
  model.checkpoint_encoder = keys.encoder_checkpointing.value_or(keys.gradient_checkpointing);
  model.checkpoint_decoder = keys.decoder_checkpointing.value_or(keys.gradient_checkpointing);
  return model;
}

Status check_speech_model(const Config& config) {
  const auto& keys = config.settings.task_settings.get<SpeechKeys>();
  const std::string& name = config.settings.model.name;
  const auto known = known_speech_model(name);
  if (!known) {
    if (keys.pretrained) return {};  // the sizes are in the model's file
    return clash_error(config, "model.name", "model.pretrained",
                       "the sizes of this model are in its file: use pretrained: true, or one of "
                       "parakeet-tdt-0.6b-v2, parakeet-tdt-0.6b-v3 and fastconformer");
  }
  const SpeechModelSettings model = with_speech_keys(*known, keys);
  // The position encodings of attention are pairs of a sine and a cosine.
  if (model.width % (2 * model.heads) != 0) {
    return clash_error(
        config, "model.encoder.n_heads", "model.encoder.d_model",
        fmt::format("d_model ({}) must be a multiple of 2 * n_heads ({})", model.width, model.heads));
  }
  return {};
}

}  // namespace octavo_train
