// BDH (Dragon Hatchling), the published architecture: three weight tensors shared by all layers, ReLU-sparse
// codes of many neurons, rotary attention without softmax between the codes (strictly lower-triangular),
// bytes as tokens. Given the reference implementation's weights it computes the reference's logits;
// tests/train/bdh_golden.txt holds them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/text/text_model.h"

#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>

namespace octavo::train {

struct BdhConfig {
  std::int64_t n_layer = 6;
  std::int64_t n_embd = 256;
  std::int64_t n_head = 4;
  std::int64_t mlp_internal_dim_multiplier = 128;
  std::int64_t vocab_size = kByteVocabulary;
  double dropout = 0.1;
  bool gradient_checkpointing = false;  // of each layer: see nn/recompute.h

  // Neurons of one head.
  [[nodiscard]] std::int64_t neurons() const { return mlp_internal_dim_multiplier * n_embd / n_head; }
};

class BdhImpl : public TextModel {
 public:
  // Weights normal with deviation 0.02, from torch's generator. Throws c10::Error where the config is no
  // model: sizes below 1, heads that do not divide the neurons, an odd number of neurons (rotations take
  // pairs).
  explicit BdhImpl(const BdhConfig& config);

  // Attention has no softmax, so the past of a layer is one sum of fixed size, n_head * neurons() * n_embd
  // numbers: a token costs the same whatever came before it. REQUIRES: no gradient is wanted.
  std::unique_ptr<GrowingText> begin_text() override;

  // All layers have the same weights.
  [[nodiscard]] std::int64_t uses_of_weights() const override { return config_.n_layer; }

  [[nodiscard]] const BdhConfig& config() const { return config_; }

 private:
  // Tokens are below vocab_size.
  torch::Tensor logits(const torch::Tensor& tokens, const DropoutPass& pass) override;

  class Text;
  struct Angles {
    torch::Tensor cosines, sines;  // [length, pairs]
  };
  [[nodiscard]] Angles angles(std::int64_t first, std::int64_t length, const torch::Device& device) const;
  void look_up_angles(std::int64_t length, const torch::Device& device);
  torch::Tensor layer(const torch::Tensor& x, const Angles& turn, const DropoutPass& pass,
                      std::int64_t number) const;
  [[nodiscard]] torch::Tensor for_heads(const torch::Tensor& x) const;
  [[nodiscard]] torch::Tensor encode(const torch::Tensor& x) const;
  [[nodiscard]] torch::Tensor answer(const torch::Tensor& code, const torch::Tensor& seen) const;
  [[nodiscard]] torch::Tensor dropped(const torch::Tensor& x, const torch::Tensor& answers,
                                      const DropoutPass& pass, std::int64_t layer) const;
  [[nodiscard]] torch::Tensor merge(const torch::Tensor& x, const torch::Tensor& answers) const;

  BdhConfig config_;
  // Named as in the reference, so that its state dicts load.
  torch::Tensor decoder_, encoder_, encoder_v_, lm_head_, embed_;
  torch::Tensor frequencies_;  // of pairs of neurons: turns per position, fp32 whatever the weights are
  Angles angles_;              // for the last length and device
};
TORCH_MODULE(Bdh);

}  // namespace octavo::train
