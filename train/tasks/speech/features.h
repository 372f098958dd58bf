// Features of recordings, computed where the model is: nn/mel.h by a model's settings.
//
//   const Featurizer featurizer(settings, device);
//   const auto [features, lengths] = featurizer(audio, samples);            // evaluation
//   const auto [features, lengths] = featurizer(audio, samples, pass);      // training: with dither
//
// It is const and may be used from several threads.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/nn/mel.h"
#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/feature_tables.h"

#include <torch/types.h>

#include <cstdint>
#include <span>

namespace octavo::train {

struct Features {
  torch::Tensor frames;   // [clips, T, features] in fp32; zeros beyond a clip's end
  torch::Tensor lengths;  // int64 [clips], in frames, on the same device
};

class Featurizer {
 public:
  // `tables` are an archive's; where one is empty it is made from the settings. Throws c10::Error where they
  // do not fit.
  Featurizer(const FeatureSettings& settings, const torch::Device& device, FeatureTables tables = {});

  // Of audio [clips, longest], fp32 on the device. `samples` is the length of each clip; a clip needs at
  // least one frame. With a pass there is dither, which depends on its seed, step and sample numbers; these
  // are int64 [clips] on the device, as for dropout. Nothing waits for the device.
  Features operator()(const torch::Tensor& audio, std::span<const std::int64_t> samples) const;
  Features operator()(const torch::Tensor& audio, std::span<const std::int64_t> samples,
                      const DropoutPass& pass) const;

  [[nodiscard]] const FeatureSettings& settings() const { return settings_; }
  [[nodiscard]] const torch::Device& device() const { return device_; }

 private:
  Features compute(const torch::Tensor& audio, std::span<const std::int64_t> samples, const DropoutPass& pass,
                   double dither) const;

  FeatureSettings settings_;
  torch::Device device_;
  MelTables tables_;
};

}  // namespace octavo::train
