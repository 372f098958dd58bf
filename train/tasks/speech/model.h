// The speech model: a FastConformer encoder with a transducer (TDT or RNN-T) or a CTC head. Names of
// parameters and buffers are transformers', so a checkpoint's model.safetensors has them. Weights may be
// fp32, or bf16 with vectors in fp32; activations are in the dtype of autocast, else of the weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/tasks/speech/encoder.h"
#include "train/tasks/speech/model_settings.h"
#include "train/tasks/speech/predictor.h"
#include "train/tasks/speech/transducer_head.h"

#include <octavo/transducer.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace octavo::train {

// Clips of a batch, on the device. Lengths are also on the host, so that nothing waits for the device.
struct SpeechClips {
  torch::Tensor features;         // [batch, T, bands]
  torch::Tensor feature_lengths;  // int64 [batch], frames: at least 1
  torch::Tensor targets;          // int64 [batch, U]; what follows a clip's labels is any token
  std::span<const std::int64_t> feature_lengths_on_host, target_lengths_on_host;  // `batch` numbers each
};

// For measurements: told when a part of a forward pass is done, and what the next one takes of it. The
// encoder gives its frames, the predictor what goes into the joint (of CTC: the projection to tokens gives
// logits).
enum class SpeechPart : std::uint8_t { encoder, predictor };
using SpeechObserver = std::function<void(SpeechPart, const std::vector<torch::Tensor>&)>;

class SpeechModelImpl : public torch::nn::Module, public TransducerHead {
 public:
  // Weights from torch's generator, as torch's modules draw them. Throws c10::Error where the settings are no
  // model.
  explicit SpeechModelImpl(const SpeechModelSettings& settings);

  // Called with each part of the model before loss() uses its parameters.
  void set_gate(const WeightGate& gate);

  Encoded encode(const torch::Tensor& features, const torch::Tensor& lengths, const DropoutPass& pass);

  // The loss, 0-d in fp32.
  torch::Tensor loss(const SpeechClips& clips, const DropoutPass& pass, const SpeechObserver& observer = {});
  // The same of what encode() gave for them.
  torch::Tensor loss(const Encoded& encoded, const SpeechClips& clips, const DropoutPass& pass,
                     const SpeechObserver& observer = {});

  // CTC: logits [batch, T, vocabulary + 1] of the encoder's frames.
  torch::Tensor ctc_logits(const torch::Tensor& frames);

  // TDT and RNN-T: see transducer_head.h.
  torch::Tensor project(const torch::Tensor& frames) override;
  std::pair<torch::Tensor, PredictorState> predict(const torch::Tensor& tokens,
                                                   const PredictorState& state) override;
  torch::Tensor joint(const torch::Tensor& f, const torch::Tensor& g) override;
  [[nodiscard]] std::int64_t blank() const override { return settings_.blank(); }
  [[nodiscard]] const std::vector<std::int64_t>& durations() const override { return settings_.durations; }
  // What the joint takes for labels [batch, U]: [batch, U + 1, hidden].
  torch::Tensor predictions(const torch::Tensor& targets, const DropoutPass& pass);

  [[nodiscard]] const SpeechModelSettings& settings() const { return settings_; }

 private:
  torch::Tensor ctc_loss(const Encoded& encoded, const SpeechClips& clips, const SpeechObserver& observer);
  torch::Tensor transducer_loss(const Encoded& encoded, const SpeechClips& clips, const DropoutPass& pass,
                                const SpeechObserver& observer);

  SpeechModelSettings settings_;
  TransducerReduction reduction_;
  Encoder encoder_;
  torch::nn::Linear encoder_projector_{nullptr};  // the transducers', as the two after it
  Predictor predictor_{nullptr};
  torch::nn::Linear head_{nullptr};
  torch::nn::Conv1d ctc_head_{nullptr};
  WeightGate gate_;
};
TORCH_MODULE(SpeechModel);

}  // namespace octavo::train
