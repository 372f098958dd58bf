// The config's settings for recordings of the task `speech`: one field per key of recording_config.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/manifest/manifest.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

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

// Feature settings that override those of the model: see feature_settings.h.
struct FeatureKeys {
  std::optional<std::int64_t> sample_rate, features, n_fft;
  std::optional<double> window_size, window_stride, preemph, dither;
  std::optional<std::string> normalize, window;  // each has one valid value; exists to accept NeMo's configs
};

}  // namespace octavo_train
