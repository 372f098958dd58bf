// Settings of the speech model: sizes, dropout, head and loss. The defaults are those of Parakeet TDT 0.6B
// v3; v2 differs only in its vocabulary of 1,024 tokens. Does not use LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

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
};

// Returns true if the heads have the same outputs with the same meaning, for vocabularies of the same size.
inline bool has_same_head(const SpeechModelSettings& a, const SpeechModelSettings& b) {
  return a.head == b.head && (a.head != SpeechHead::tdt || a.durations == b.durations);
}

}  // namespace octavo_train
