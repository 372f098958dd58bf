// The config of a small NeMo model, for tests.
// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace octavo_train {

// Returns the text with its first `from` replaced by `to`.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// Returns the relevant keys in NeMo's format, with three `labels`.
inline std::string nemo_yaml() {
  return R"(sample_rate: 16000
compute_eval_loss: false
rnnt_reduction: mean_volume
model_defaults:
  tdt_durations: [0, 1, 2, 3, 4]
preprocessor:
  _target_: nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor
  features: 32
encoder:
  _target_: nemo.collections.asr.modules.ConformerEncoder
  feat_in: 32
  feat_out: -1
  n_layers: 2
  d_model: 64
  use_bias: false
  subsampling: dw_striding
  subsampling_factor: 8
  subsampling_conv_channels: 16
  causal_downsampling: false
  reduction: null
  ff_expansion_factor: 4
  self_attention_model: rel_pos
  n_heads: 4
  att_context_size:
  - -1
  - -1
  xscaling: false
  untie_biases: true
  conv_kernel_size: 9
  conv_norm_type: batch_norm
  conv_context_size: null
  dropout: 0.1
  dropout_pre_encoder: 0.15
  dropout_emb: 0.0
  dropout_att: 0.05
decoder:
  _target_: nemo.collections.asr.modules.RNNTDecoder
  normalization_mode: null
  blank_as_pad: true
  prednet:
    pred_hidden: 48
    pred_rnn_layers: 2
    dropout: 0.2
  vocab_size: 3
joint:
  _target_: nemo.collections.asr.modules.RNNTJoint
  fused_batch_size: 4
  jointnet:
    joint_hidden: 40
    activation: relu
    dropout: 0.25
  num_extra_outputs: 5
  num_classes: 3
  vocabulary: [a, b, <pad>]
loss:
  loss_name: tdt
  tdt_kwargs:
    fastemit_lambda: 0.0
    clamp: -1.0
    durations: [0, 1, 2, 3, 4]
    sigma: 0.03
    omega: 0.2
labels: [a, b, <pad>]
target: nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel
)";
}

}  // namespace octavo_train
