// A text model that the trainer can train: bytes in, logits out. A new model also needs its name and keys in
// config.cc and a line in make_text_model().
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/nn/dropout.h"

#include <torch/nn/module.h>
#include <torch/types.h>

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

// Creates the model that model.name names, on the CPU, in fp32, with weights from torch's generator. Throws
// c10::Error if the settings are invalid.
std::shared_ptr<TextModel> make_text_model(const Settings& settings);

}  // namespace octavo_train
