// The speech model: a FastConformer encoder with a transducer head (TDT or RNN-T) or a CTC head. Parameters
// and buffers have the names that transformers uses, so model.safetensors in a checkpoint has them too.
// Weights are fp32, or bf16 with vectors in fp32. Activations have the dtype of autocast if it is enabled,
// else that of the weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/model/encoder.h"
#include "train/tasks/speech/model/predictor.h"

#include <octavo/transducer.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace octavo_train {

// The clips of a batch, on the device. Lengths are also on the host, so that the host does not wait for the
// device.
struct SpeechClips {
  torch::Tensor features;         // [batch, T, bands]
  torch::Tensor feature_lengths;  // int64 [batch], frames: at least 1
  torch::Tensor targets;          // int64 [batch, U]; any token may follow a clip's labels
  std::span<const std::int64_t> feature_lengths_on_host, target_lengths_on_host;  // `batch` numbers each
};

// Is called for measurements when a part of a forward pass is done, with the tensors that the next part uses.
// The encoder passes its frames. The predictor passes the inputs of the joint; for CTC, the projection to
// tokens passes its logits.
enum class SpeechPart : std::uint8_t { encoder, predictor };
using SpeechObserver = std::function<void(SpeechPart, const std::vector<torch::Tensor>&)>;

class SpeechModelImpl : public torch::nn::Module, public TransducerHead {
 public:
  // Initializes the weights from torch's random generator, with the distributions of torch's own modules.
  // Throws c10::Error if the settings are invalid.
  explicit SpeechModelImpl(const SpeechModelSettings& settings);

  // Sets the function that is called with each part of the model before encode() and loss() use its
  // parameters.
  void set_gate(const WeightGate& gate);

  Encoded encode(const torch::Tensor& features, const torch::Tensor& lengths, const DropoutKey& pass);

  // Returns the loss, 0-d in fp32.
  torch::Tensor loss(const SpeechClips& clips, const DropoutKey& pass, const SpeechObserver& observer = {});
  // Returns the loss of clips that encode() has already encoded.
  torch::Tensor loss(const Encoded& encoded, const SpeechClips& clips, const DropoutKey& pass,
                     const SpeechObserver& observer = {});

  // Returns the CTC logits of the encoder's frames, [batch, T, vocabulary + 1]. Throws c10::Error if the
  // model has no CTC head.
  torch::Tensor ctc_logits(const torch::Tensor& frames);

  // Implements TransducerHead (predictor.h) for TDT and RNN-T.
  torch::Tensor project_frames(const torch::Tensor& frames) override;
  std::pair<torch::Tensor, PredictorState> predict(const torch::Tensor& tokens,
                                                   const PredictorState& state) override;
  torch::Tensor joint(const torch::Tensor& f, const torch::Tensor& g) override;
  [[nodiscard]] std::int64_t blank() const override { return settings_.blank(); }
  [[nodiscard]] const std::vector<std::int64_t>& durations() const override { return settings_.durations; }
  // Returns the joint's inputs for labels [batch, U]: [batch, U + 1, hidden].
  torch::Tensor predictions(const torch::Tensor& targets, const DropoutKey& pass);

  [[nodiscard]] const SpeechModelSettings& settings() const { return settings_; }

 private:
  torch::Tensor ctc_loss(const Encoded& encoded, const SpeechClips& clips, const SpeechObserver& observer);
  torch::Tensor transducer_loss(const Encoded& encoded, const SpeechClips& clips, const DropoutKey& pass,
                                const SpeechObserver& observer);

  SpeechModelSettings settings_;
  octavo::TransducerReduction reduction_;
  Encoder encoder_;
  torch::nn::Linear encoder_projector_{nullptr};  // transducers only, as are the next two
  Predictor predictor_{nullptr};
  torch::nn::Linear head_{nullptr};
  torch::nn::Conv1d ctc_head_{nullptr};
  WeightGate gate_;
};
TORCH_MODULE(SpeechModel);

}  // namespace octavo_train
