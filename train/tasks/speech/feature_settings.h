// What the features of a recording are: the numbers of NeMo's preprocessor, with its names. The defaults are
// Parakeet's. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>

namespace octavo::train {

// A clip has as many at least: the deviation of one is not known.
inline constexpr std::int64_t kFewestFrames = 2;

struct FeatureSettings {
  std::int64_t sample_rate = 16000;                  // in Hz
  double window_size = 0.025, window_stride = 0.01;  // in seconds
  std::int64_t n_fft = 512;
  std::int64_t features = 128;            // mel bands
  double lowfreq = 0;                     // Hz where the first band begins
  double highfreq = 0;                    // Hz where the last one ends; 0: half the rate
  double preemph = 0.97;                  // 0: none
  double dither = 1e-5;                   // deviation of the noise that training adds; 0: none
  double log_zero_guard_value = 0x1p-24;  // is added before the logarithm
  std::int64_t pad_to = 0;  // training pads the frames of a batch to a multiple of this; 0: it does not

  // In samples.
  [[nodiscard]] std::int64_t window() const { return samples(window_size); }
  [[nodiscard]] std::int64_t hop() const { return samples(window_stride); }
  [[nodiscard]] std::int64_t bins() const { return n_fft / 2 + 1; }
  [[nodiscard]] double highest() const {
    return highfreq > 0 ? highfreq : static_cast<double>(sample_rate) / 2;
  }
  // Of a clip of that many samples.
  [[nodiscard]] std::int64_t frames(std::int64_t count) const { return count / hop(); }
  // Frames of a training batch whose longest clip has `longest`. NeMo's features have one frame of padding
  // more than the longest clip, and are then padded to a multiple of pad_to. Only BatchNorm sees the padding.
  [[nodiscard]] std::int64_t padded_frames(std::int64_t longest) const {
    const std::int64_t frames = longest + 1;
    return pad_to > 0 ? (frames + pad_to - 1) / pad_to * pad_to : frames;
  }

  friend bool operator==(const FeatureSettings&, const FeatureSettings&) = default;

 private:
  // As NeMo, which cuts off; the share of a sample is what a number such as 0.01 lacks in binary.
  [[nodiscard]] std::int64_t samples(double seconds) const {
    return static_cast<std::int64_t>(seconds * static_cast<double>(sample_rate) + 1e-6);
  }
};

// Returns true if a recording has the same features in evaluation: dither and padding belong to training
// alone.
inline bool same_features(FeatureSettings a, const FeatureSettings& b) {
  a.dither = b.dither;
  a.pad_to = b.pad_to;
  return a == b;
}

}  // namespace octavo::train
