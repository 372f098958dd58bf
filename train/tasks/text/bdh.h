// The interface of text models (bytes in, logits out), and the model BDH. A new model also needs its name and
// keys in config.cc and a line in make_text_model().
//
// BDH (Dragon Hatchling), the published architecture: three weight tensors shared by all layers, ReLU-sparse
// codes of many neurons, rotary attention without softmax between the codes (strictly lower-triangular),
// bytes as tokens. Given the reference implementation's weights it computes the reference's logits;
// tests/train/bdh_golden.txt holds them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/nn/dropout.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>

namespace octavo_train {

constexpr std::int64_t kByteVocabulary = 256;

// The state of a text to which tokens are appended during generation.
class GenerationState {
 public:
  GenerationState() = default;
  virtual ~GenerationState() = default;
  GenerationState(const GenerationState&) = delete;
  GenerationState& operator=(const GenerationState&) = delete;

  // Appends tokens [length] (int64, length >= 1). Returns the logits [vocabulary] of the next token.
  virtual torch::Tensor append(const torch::Tensor& tokens) = 0;
};

class TextModel : public torch::nn::Module {
 public:
  // Returns the logits [batch, length, vocabulary] of tokens [batch, length] (int64). In training, a model
  // with dropout needs `pass` with the sample numbers of its texts.
  torch::Tensor forward(const torch::Tensor& tokens, const DropoutKey& pass = {}) {
    return logits(tokens, pass);
  }

  // Returns an empty text. The model must outlive it, and the model's weights must not change meanwhile. A
  // model that can keep a state of the text overrides this function. Otherwise append() computes the complete
  // text again each time.
  virtual std::unique_ptr<GenerationState> begin_text();

  // See Task.
  [[nodiscard]] virtual std::int64_t uses_of_weights() const { return 1; }

 private:
  virtual torch::Tensor logits(const torch::Tensor& tokens, const DropoutKey& pass) = 0;
};

struct BdhConfig {
  std::int64_t n_layer = 6;
  std::int64_t n_embd = 256;
  std::int64_t n_head = 4;
  std::int64_t mlp_internal_dim_multiplier = 128;
  std::int64_t vocab_size = kByteVocabulary;
  double dropout = 0.1;
  bool gradient_checkpointing = false;  // of each layer; see train/nn/recompute.h

  // Neurons of one head.
  [[nodiscard]] std::int64_t neurons() const { return mlp_internal_dim_multiplier * n_embd / n_head; }
};

class BdhImpl : public TextModel {
 public:
  // Initializes the weights from a normal distribution with standard deviation 0.02, with torch's generator.
  // Throws c10::Error if the config is invalid: sizes below 1, heads that do not divide the neurons, or an
  // odd number of neurons per head (rotations need pairs).
  explicit BdhImpl(const BdhConfig& config);

  // Attention has no softmax, so the past of a layer is one sum of fixed size, n_head * neurons() * n_embd
  // numbers. Every token costs the same, however long the text before it is. REQUIRES: no gradient is needed.
  std::unique_ptr<GenerationState> begin_text() override;

  // Returns the number of layers, because all layers share their weights.
  [[nodiscard]] std::int64_t uses_of_weights() const override { return config_.n_layer; }

  [[nodiscard]] const BdhConfig& config() const { return config_; }

 private:
  // REQUIRES: tokens are below vocab_size.
  torch::Tensor logits(const torch::Tensor& tokens, const DropoutKey& pass) override;

  class Text;
  struct Angles {
    torch::Tensor cosines, sines;  // [length, pairs]
  };
  [[nodiscard]] Angles angles(std::int64_t first, std::int64_t length, const torch::Device& device) const;
  void look_up_angles(std::int64_t length, const torch::Device& device);
  torch::Tensor layer(const torch::Tensor& x, const Angles& turn, const DropoutKey& pass,
                      std::int64_t number) const;
  [[nodiscard]] torch::Tensor for_heads(const torch::Tensor& x) const;
  [[nodiscard]] torch::Tensor encode(const torch::Tensor& x) const;
  [[nodiscard]] torch::Tensor answer(const torch::Tensor& code, const torch::Tensor& seen) const;
  [[nodiscard]] torch::Tensor dropped(const torch::Tensor& x, const torch::Tensor& answers,
                                      const DropoutKey& pass, std::int64_t layer) const;
  [[nodiscard]] torch::Tensor merge(const torch::Tensor& x, const torch::Tensor& answers) const;

  BdhConfig config_;
  // Named as in the reference, so that its state dicts load.
  torch::Tensor decoder_, encoder_, encoder_v_, lm_head_, embed_;
  torch::Tensor frequencies_;  // turns per position of each pair of neurons, fp32 whatever the weights are
  Angles angles_;              // for the last length and device
};
TORCH_MODULE(Bdh);

// Creates the model that model.name names, on the CPU, in fp32, with weights from torch's generator. Throws
// c10::Error if the settings are invalid.
std::shared_ptr<TextModel> make_text_model(const Settings& settings);

}  // namespace octavo_train
