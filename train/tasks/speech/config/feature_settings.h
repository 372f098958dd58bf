// The settings that determine the features of a recording: those of NeMo's preprocessor, under NeMo's names.
// The defaults are Parakeet's. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>

namespace octavo_train {

// The minimum number of frames of a clip. One frame is not enough, because its standard deviation is
// undefined.
inline constexpr std::int64_t kFewestFrames = 2;

struct FeatureSettings {
  std::int64_t sample_rate = 16000;                  // in Hz
  double window_size = 0.025, window_stride = 0.01;  // in seconds
  std::int64_t n_fft = 512;
  std::int64_t features = 128;            // mel bands
  double lowfreq = 0;                     // lower edge of the first band, in Hz
  double highfreq = 0;                    // upper edge of the last band, in Hz; 0: half the sample rate
  double preemph = 0.97;                  // preemphasis coefficient; 0: no preemphasis
  double dither = 1e-5;                   // standard deviation of the noise that training adds; 0: no noise
  double log_zero_guard_value = 0x1p-24;  // added before the logarithm
  std::int64_t pad_to = 0;  // in training, frames of a batch are padded to a multiple of this; 0: off

  // Return the window length and the hop length in samples.
  [[nodiscard]] std::int64_t window() const { return samples(window_size); }
  [[nodiscard]] std::int64_t hop() const { return samples(window_stride); }
  [[nodiscard]] std::int64_t bins() const { return n_fft / 2 + 1; }
  [[nodiscard]] double highest() const {
    return highfreq > 0 ? highfreq : static_cast<double>(sample_rate) / 2;
  }
  // Returns the number of frames of a clip of `count` samples.
  [[nodiscard]] std::int64_t frames(std::int64_t count) const { return count / hop(); }
  // Returns the number of frames of a training batch whose longest clip has `longest` frames. NeMo adds one
  // frame of padding to the longest clip, and then pads to a multiple of pad_to. Only BatchNorm sees the
  // padding.
  [[nodiscard]] std::int64_t padded_frames(std::int64_t longest) const {
    const std::int64_t frames = longest + 1;
    return pad_to > 0 ? (frames + pad_to - 1) / pad_to * pad_to : frames;
  }

  friend bool operator==(const FeatureSettings&, const FeatureSettings&) = default;

 private:
  // Rounds down like NeMo. The 1e-6 samples compensate for the rounding error of binary numbers such as 0.01.
  [[nodiscard]] std::int64_t samples(double seconds) const {
    return static_cast<std::int64_t>(seconds * static_cast<double>(sample_rate) + 1e-6);
  }
};

// Returns true if a recording has the same features in evaluation. Dither and padding are ignored, because
// they are applied only in training.
inline bool same_features(FeatureSettings a, const FeatureSettings& b) {
  a.dither = b.dither;
  a.pad_to = b.pad_to;
  return a == b;
}

}  // namespace octavo_train
