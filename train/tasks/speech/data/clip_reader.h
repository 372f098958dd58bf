// Reads the clip of a manifest line as samples and tokens. A clip is bad if its recording cannot be read, is
// silent or is shorter than the line's duration, if its text is empty or has characters without a token, if
// it exceeds the limits of a batch, or if it has too few frames for CTC. No LibTorch.
//
// The perturbations of training (speed, noise) depend only on the seed and the draw's number.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/data/length_buckets.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/config/settings.h"
#include "train/tasks/speech/manifest/manifest.h"
#include "train/tasks/speech/tokenizer/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

struct LoadedClip {
  std::vector<float> samples;        // mono, at the features' rate
  std::vector<std::int64_t> tokens;  // the transcript
  std::vector<float> features;       // [frames, bands] if already computed; then `samples` may be empty
};

// All const functions may be called concurrently. The tokenizer and the noise manifest must outlive the
// reader.
class ClipReader {
 public:
  // `noise` is null if no noise is added.
  ClipReader(const Tokenizer& tokenizer, const FeatureSettings& features, const RecordingSettings& settings,
             const Manifest* noise, SpeechHead head, std::uint64_t seed);

  // Reads the clip unchanged, or with the perturbations of a draw. Returns an error that is the reason why
  // the clip is bad.
  [[nodiscard]] Result<LoadedClip> read(const ManifestEntry& entry,
                                        std::optional<std::uint64_t> draw = std::nullopt) const;

  // Returns only the clip's tokens, or an error if they are invalid, if the clip exceeds the limits of a
  // batch or if it has too few frames for CTC.
  [[nodiscard]] Result<std::vector<std::int64_t>> tokens_of(const ManifestEntry& entry) const;

  // Returns the clip's cost at the slowest speed perturbation, whichever speed a draw uses.
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

}  // namespace octavo_train
