// Settings of the speech model (sizes, dropout, head and loss) and of the features that it takes (those of
// NeMo's preprocessor). The defaults are those of Parakeet TDT 0.6B v3; v2 differs only in its vocabulary of
// 1,024 tokens. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

enum class SpeechHead : std::uint8_t { tdt, rnnt, ctc };

struct SpeechModelSettings {
  // The encoder.
  std::int64_t mel_bands = 128;             // values per frame of features
  std::int64_t subsampling_channels = 256;  // of the three convolutions, which reduce 8 frames to 1
  std::int64_t encoder_layers = 24;
  std::int64_t width = 1024;  // of an encoder frame
  std::int64_t heads = 8;
  std::int64_t feed_forward = 4096;
  std::int64_t kernel = 9;         // frames that a layer's convolution sees; odd
  bool freeze_batch_norm = false;  // BatchNorm uses its running statistics in training too, unchanged

  // The head. CTC has only a projection to tokens.
  SpeechHead head = SpeechHead::tdt;
  std::int64_t vocabulary = 8192;  // tokens without blank; blank is the next number
  std::int64_t predictor_width = 640, predictor_layers = 2, joint_width = 640;
  std::vector<std::int64_t> durations = {0, 1, 2, 3, 4};  // TDT: in frames, in the order of the outputs

  // The loss.
  double sigma = 0.02;                   // TDT: subtracted from every token's score
  double omega = 0.1;                    // TDT: probability that a step uses RNN-T's loss on the tokens
  std::string reduction = "mean_batch";  // mean_batch, mean or mean_volume: octavo/transducer.h

  // Dropout probabilities. `dropout` applies to the residual branches and inside the feed-forward layers,
  // `attention_dropout` to the attention probabilities, `input_dropout` to the input of the first encoder
  // layer, `predictor_dropout` to the predictor and `joint_dropout` to the joint's hidden units.
  double dropout = 0.1, attention_dropout = 0.1, input_dropout = 0.1;
  double predictor_dropout = 0.2, joint_dropout = 0.2;

  // Greedy decoding of a transducer: the maximum number of labels at one frame. Decoding then moves on to the
  // next frame.
  std::int64_t max_symbols = 10;

  // Activation checkpointing: activations are recomputed in the backward pass instead of stored.
  bool checkpoint_encoder = false, checkpoint_decoder = false;

  [[nodiscard]] std::int64_t blank() const { return vocabulary; }
  // Returns the number of outputs of the head per frame or cell: tokens with blank, then durations.
  [[nodiscard]] std::int64_t outputs() const {
    return vocabulary + 1 + (head == SpeechHead::tdt ? static_cast<std::int64_t>(durations.size()) : 0);
  }
  friend bool operator==(const SpeechModelSettings&, const SpeechModelSettings&) = default;
};

// Returns true if the heads have the same outputs with the same meaning, for vocabularies of the same size.
inline bool has_same_head(const SpeechModelSettings& a, const SpeechModelSettings& b) {
  return a.head == b.head && (a.head != SpeechHead::tdt || a.durations == b.durations);
}

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
