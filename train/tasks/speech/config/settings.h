// The config's settings for the task `speech`: one field per key of config.cc and model_config.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/config/model_settings.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// Settings of the generator of synthetic clips: see generator.h.
struct GeneratorSettings {
  std::optional<std::int64_t> clips;  // training clips; nullopt: there is no generator
  std::int64_t validation_clips = 0;
  double seconds = 0;       // of the longest clip
  std::int64_t tokens = 0;  // of the longest clip
  double vary = 0;          // clips are shorter than the longest by at most this fraction
  std::optional<std::int64_t> vocabulary;
  double noise = 0;
  std::int64_t seed = 0;
};

// SpecAugment: masks parts of the features in training. See augment.h. The names are NeMo's.
struct SpecAugmentSettings {
  std::int64_t freq_masks = 0;
  std::int64_t time_masks = 0;
  std::int64_t freq_width = 0;
  double time_width = 0;
};

// The config's keys for the model. Keys that are not set keep the values of the model that model.name names:
// see with_speech_keys() in model_config.h.
struct SpeechKeys {
  bool pretrained = false;
  bool gradient_checkpointing = false;
  bool freeze_batch_norm = false;
  std::optional<SpeechHead> head;
  std::optional<std::int64_t> vocab_size;

  std::optional<std::int64_t> feat_in, subsampling_conv_channels, n_layers, d_model, n_heads,
      ff_expansion_factor, conv_kernel_size;
  std::optional<double> dropout, dropout_pre_encoder, dropout_att;
  std::optional<bool> encoder_checkpointing;

  std::optional<std::int64_t> pred_hidden, pred_rnn_layers;
  std::optional<double> decoder_dropout;
  std::optional<bool> decoder_checkpointing;

  std::optional<std::int64_t> joint_hidden;
  std::optional<double> joint_dropout;

  std::optional<std::vector<std::int64_t>> durations;
  std::optional<double> sigma, omega;
  std::optional<std::string> reduction;
};

}  // namespace octavo_train
