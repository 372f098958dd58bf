// The config's settings for the task `speech`: one field per key of config.cc, model_keys.cc and
// recording_keys.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/manifest/manifest.h"

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

// SpecAugment: masks parts of the features in training. See spec_augment.h. The names are NeMo's.
struct SpecAugmentSettings {
  std::int64_t freq_masks = 0;
  std::int64_t time_masks = 0;
  std::int64_t freq_width = 0;
  double time_width = 0;
};

// The config's keys for the model. Keys that are not set keep the values of the model that model.name names:
// see with_speech_keys() in keys.h.
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

using Manifests = std::vector<ManifestSource>;

struct SnrRange {
  double low = 0, high = 0;  // dB
  friend bool operator==(const SnrRange&, const SnrRange&) = default;
};

struct RecordingSettings {
  std::optional<Manifests> train_manifest, val_manifest;
  std::string text_field, lang_field;
  std::optional<std::int64_t> sample_rate;
  double min_duration = 0, max_duration = 0;  // seconds
  BadClips bad_clips{};

  // Limits of a batch: see train/data/length_buckets.h.
  std::optional<double> batch_seconds;
  std::optional<std::int64_t> batch_cells;
  std::int64_t bucket_buffer_size = 0;

  // Perturbation of recordings in training: see train/audio/perturb.h.
  std::vector<double> speed_perturb;  // empty: none
  std::optional<Manifests> noise_manifest;
  SnrRange noise_snr;
  double noise_prob = 0;

  std::optional<std::string> cache_features;

  [[nodiscard]] bool has_budget() const { return batch_seconds || batch_cells; }
};

// Selects the tokenizer. If no key is set, the tokenizer of model.name's archive is used.
struct TokenizerKeys {
  std::optional<std::string> model, dir, type;
};

// Feature settings that override those of the model: see FeatureSettings.
struct FeatureKeys {
  std::optional<std::int64_t> sample_rate, features, n_fft;
  std::optional<double> window_size, window_stride, preemph, dither;
  std::optional<std::string> normalize, window;  // each has one valid value; exists to accept NeMo's configs
};

// Replaces a value by that of a key, if the key is set.
template <class T>
void take(const std::optional<T>& key, T& value) {
  if (key) value = *key;
}

}  // namespace octavo_train
