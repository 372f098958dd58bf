// The FastConformer encoder: subsampling, then layers of feed-forward, attention with relative positions,
// convolution and feed-forward. Parameters and buffers have the names of the published weights in
// transformers' format.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"
#include "train/nn/weight_matmul.h"
#include "train/tasks/speech/config/model_settings.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <utility>
#include <vector>

namespace octavo_train {

// The first layers of the encoder, which reduce 8 frames of features to 1.
class SubsamplingImpl : public torch::nn::Module {
 public:
  explicit SubsamplingImpl(const SpeechModelSettings& settings);

  // Reduces features [batch, T, bands] to [batch, subsampled(T), width]. `lengths` (int64 [batch], on the
  // device) are the frames of each clip without padding.
  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& lengths);

 private:
  bool recompute_;
  std::vector<torch::Tensor> convolutions_;  // weight and bias of each, in order
  torch::Tensor weight_, bias_;              // of the projection
};
TORCH_MODULE(Subsampling);

// The encoder's output.
struct Encoded {
  torch::Tensor frames;   // [batch, T, width]; values after a clip's length are meaningless
  torch::Tensor lengths;  // int64 [batch], on the device
};

class ConformerLayerImpl : public torch::nn::Module {
 public:
  // `number` is the layer's index. It makes the layer's dropout masks differ from those of other layers.
  ConformerLayerImpl(const SpeechModelSettings& settings, std::int64_t number);

  // Takes x [batch, T, width] and the position encodings `positions` [2 T - 1, width] of EncoderImpl. Returns
  // [batch, T, width].
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& positions, const torch::Tensor& lengths,
                        const DropoutKey& pass);

 private:
  struct FeedForward {
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  FeedForward make_feed_forward(const std::string& name);
  torch::nn::LayerNorm make_norm(const std::string& name);
  torch::Tensor feed_forward(const FeedForward& block, const torch::Tensor& x, const Drop& drop) const;
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& positions,
                          const torch::Tensor& lengths, const Drop& drop) const;
  torch::Tensor convolution(const torch::Tensor& x, const torch::Tensor& lengths);

  std::int64_t width_, ff_width_, heads_;
  double dropout_, attention_dropout_;
  bool freeze_batch_norm_;
  std::uint32_t first_drop_;
  FeedForward feed_forward1_;
  torch::Tensor bias_u_, bias_v_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr}, place_{nullptr};
  torch::nn::Conv1d into_{nullptr}, depthwise_{nullptr}, out_of_{nullptr};
  torch::nn::BatchNorm1d batch_norm_{nullptr};
  FeedForward feed_forward2_;
  torch::nn::LayerNorm before_first_{nullptr}, before_attention_{nullptr}, before_convolution_{nullptr},
      before_second_{nullptr}, after_{nullptr};
};
TORCH_MODULE(ConformerLayer);

class EncoderImpl : public torch::nn::Module {
 public:
  explicit EncoderImpl(const SpeechModelSettings& settings);

  // Sets a function that forward() calls with each submodule before it uses the submodule's parameters.
  void set_gate(WeightGate gate) { gate_ = std::move(gate); }
  // Encodes features [batch, T, bands]. `lengths` (int64 [batch], on the device) are the clips' numbers of
  // frames without padding.
  Encoded forward(const torch::Tensor& features, const torch::Tensor& lengths, const DropoutKey& pass);

 private:
  torch::Tensor positions(std::int64_t length, const torch::TensorOptions& options);

  std::int64_t width_;
  double dropout_;
  bool recompute_;
  Subsampling subsampling_;
  std::vector<ConformerLayer> layers_;
  torch::Tensor positions_;  // position encodings for the longest clip so far
  WeightGate gate_;
};
TORCH_MODULE(Encoder);

}  // namespace octavo_train
