// Computes the features of recordings on the model's device, by train/nn/mel.h with a model's settings.
//
//   const Featurizer featurizer(settings, device);
//   const auto [features, lengths] = featurizer(audio, samples);            // evaluation
//   const auto [features, lengths] = featurizer(audio, samples, pass);      // training: with dither
//
// A Featurizer is immutable and may be used from several threads.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/nn/mel.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/features/feature_tables.h"

#include <torch/types.h>

#include <cstdint>
#include <span>

namespace octavo_train {

struct Features {
  torch::Tensor frames;   // [clips, T, features] in fp32; zeros after a clip's end
  torch::Tensor lengths;  // int64 [clips], in frames, on the same device
};

class Featurizer {
 public:
  // `tables` are those of an archive. An empty table is computed from the settings. Throws c10::Error if the
  // settings are invalid or a table does not have the size that the settings require.
  Featurizer(const FeatureSettings& settings, const torch::Device& device, FeatureTables tables = {});

  // Return the features of audio [clips, longest], fp32 on the device. `samples` is the length of each clip
  // in samples; a clip needs at least one frame. With `pass`, dither is added, which depends on the pass's
  // seed, step and sample numbers (int64 [clips] on the device, as for dropout). Nothing waits for the
  // device.
  Features operator()(const torch::Tensor& audio, std::span<const std::int64_t> samples) const;
  Features operator()(const torch::Tensor& audio, std::span<const std::int64_t> samples,
                      const DropoutKey& pass) const;

  [[nodiscard]] const FeatureSettings& settings() const { return settings_; }
  [[nodiscard]] const torch::Device& device() const { return device_; }

 private:
  Features compute(const torch::Tensor& audio, std::span<const std::int64_t> samples, const DropoutKey& pass,
                   double dither) const;

  FeatureSettings settings_;
  torch::Device device_;
  MelTables tables_;
};

}  // namespace octavo_train
