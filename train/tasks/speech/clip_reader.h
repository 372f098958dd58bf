// A line of a manifest as samples and tokens, and what makes its clip a bad one: a recording that cannot be
// read or is silent or shorter than the line says, a text that is empty or that the tokenizer cannot write,
// more than a batch may hold. No LibTorch.
//
// What training does to a recording (speed, noise) depends on the seed and the draw's number alone.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/buckets.h"
#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/manifest.h"
#include "train/tasks/speech/model_settings.h"
#include "train/tasks/speech/recording_settings.h"
#include "train/tasks/speech/tokenizer.h"

#include <octavo/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

struct ReadClip {
  std::vector<float> samples;        // mono, at the features' rate
  std::vector<std::int64_t> tokens;  // what is said
  std::vector<float> features;       // [frames, bands] where they were made already; then samples may be none
};

// All const functions may be called by several threads at once. What it is made of must outlive it.
class ClipReader {
 public:
  // `noise`: null where there is none.
  ClipReader(const Tokenizer& tokenizer, const FeatureSettings& features, const RecordingSettings& settings,
             const Manifest* noise, SpeechHead head, std::uint64_t seed);

  // As it is, or as training hears it in a draw. An error is the reason why the clip is bad.
  [[nodiscard]] Result<ReadClip> read(const ManifestEntry& entry,
                                      std::optional<std::uint64_t> draw = std::nullopt) const;

  // Its tokens alone, if they are good and a batch has room for the clip.
  [[nodiscard]] Result<std::vector<std::int64_t>> said(const ManifestEntry& entry) const;

  // What it costs at the slowest speed, whatever a draw plays it at.
  [[nodiscard]] ClipCost cost(double duration, const std::string& text) const;

 private:
  [[nodiscard]] Result<std::vector<std::int64_t>> tokens(const std::string& text) const;
  [[nodiscard]] ClipCost cost(double duration, std::int64_t tokens) const;
  [[nodiscard]] double speed(std::optional<std::uint64_t> draw) const;
  [[nodiscard]] Status check_size(double duration, std::int64_t tokens) const;
  Status add_noise_of(std::uint64_t draw, std::vector<float>& samples) const;

  const Tokenizer& tokenizer_;
  FeatureSettings features_;
  RecordingSettings settings_;
  const Manifest* noise_;
  SpeechHead head_;
  std::uint64_t seed_;
};

}  // namespace octavo::train
