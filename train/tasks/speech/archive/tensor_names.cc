// The table of the tensors' names, which serves both directions. See archive.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/archive.h"

#include <algorithm>
#include <array>
#include <span>

namespace octavo_train {
namespace {

// The two prefixes of a tensor's name. The rest of the name is identical.
struct Beginning {
  std::string_view nemo;
  std::string_view transformers;
};
using Side = std::string_view Beginning::*;

constexpr std::string_view kLayer = "encoder.layers.";

constexpr Beginning kHeadWithoutDropout = {"joint.joint_net.1.", "joint.head."};

constexpr std::array<Beginning, 9> kParts = {{
    {"encoder.pre_encode.conv.", "encoder.subsampling.layers."},
    {"encoder.pre_encode.out.", "encoder.subsampling.linear."},
    {"decoder.prediction.embed.", "decoder.embedding."},
    {"decoder.prediction.dec_rnn.lstm.", "decoder.lstm."},
    {"joint.enc.", "encoder_projector."},
    {"joint.pred.", "decoder.decoder_projector."},
    {"joint.joint_net.2.", "joint.head."},
    kHeadWithoutDropout,
    {"decoder.decoder_layers.0.", "ctc_head."},
}};

// The prefixes after `encoder.layers.N.`.
constexpr std::array<Beginning, 18> kPartsOfLayer = {{
    {"feed_forward1.", "feed_forward1."},
    {"feed_forward2.", "feed_forward2."},
    {"self_attn.linear_q.", "self_attn.q_proj."},
    {"self_attn.linear_k.", "self_attn.k_proj."},
    {"self_attn.linear_v.", "self_attn.v_proj."},
    {"self_attn.linear_out.", "self_attn.o_proj."},
    {"self_attn.linear_pos.", "self_attn.relative_k_proj."},
    {"self_attn.pos_bias_u", "self_attn.bias_u"},
    {"self_attn.pos_bias_v", "self_attn.bias_v"},
    {"conv.pointwise_conv1.", "conv.pointwise_conv1."},
    {"conv.pointwise_conv2.", "conv.pointwise_conv2."},
    {"conv.depthwise_conv.", "conv.depthwise_conv."},
    {"conv.batch_norm.", "conv.norm."},
    {"norm_feed_forward1.", "norm_feed_forward1."},
    {"norm_feed_forward2.", "norm_feed_forward2."},
    {"norm_self_att.", "norm_self_att."},
    {"norm_conv.", "norm_conv."},
    {"norm_out.", "norm_out."},
}};

std::optional<std::string> exchanged(std::span<const Beginning> parts, std::string_view name, Side from,
                                     Side to) {
  for (const Beginning& part : parts) {
    if (name.starts_with(part.*from))
      return std::string(part.*to) + std::string(name.substr((part.*from).size()));
  }
  return std::nullopt;
}

std::optional<std::string> other_name(std::string_view name, Side from, Side to) {
  if (!name.starts_with(kLayer)) return exchanged(kParts, name, from, to);
  const std::size_t dot = name.find('.', kLayer.size());
  const std::string_view number =
      name.substr(kLayer.size(), dot == std::string_view::npos ? 0 : dot - kLayer.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (number.empty() || !std::ranges::all_of(number, is_digit)) return std::nullopt;
  const auto rest = exchanged(kPartsOfLayer, name.substr(dot + 1), from, to);
  if (!rest) return std::nullopt;
  return std::string(name.substr(0, dot + 1)) + *rest;
}

}  // namespace

std::optional<std::string> transformers_name(std::string_view nemo) {
  return other_name(nemo, &Beginning::nemo, &Beginning::transformers);
}

std::optional<std::string> nemo_name(std::string_view transformers, double joint_dropout) {
  if (joint_dropout == 0 && transformers.starts_with(kHeadWithoutDropout.transformers)) {
    return std::string(kHeadWithoutDropout.nemo) +
           std::string(transformers.substr(kHeadWithoutDropout.transformers.size()));
  }
  return other_name(transformers, &Beginning::transformers, &Beginning::nemo);
}

bool is_preprocessor_name(std::string_view nemo) { return nemo.starts_with("preprocessor.featurizer."); }

}  // namespace octavo_train
