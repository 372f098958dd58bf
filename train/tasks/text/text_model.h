// A model of text that the trainer can train: bytes in, logits out. A new one also needs its name and keys in
// config.cc and a line in make_text_model.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/nn/dropout.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>

namespace octavo::train {

constexpr std::int64_t kByteVocabulary = 256;

// One text that grows, as a model sees it while it writes.
class GrowingText {
 public:
  GrowingText() = default;
  virtual ~GrowingText() = default;
  GrowingText(const GrowingText&) = delete;
  GrowingText& operator=(const GrowingText&) = delete;

  // Adds tokens [length] (int64, length >= 1); the logits [vocabulary] of the token that comes next.
  virtual torch::Tensor append(const torch::Tensor& tokens) = 0;
};

class TextModel : public torch::nn::Module {
 public:
  // Tokens [batch, length] (int64) to logits [batch, length, vocabulary]. A model that drops activations
  // needs a pass with the numbers of its texts, in training only.
  torch::Tensor forward(const torch::Tensor& tokens, const DropoutPass& pass = {}) {
    return logits(tokens, pass);
  }

  // An empty text; the model must outlive it, and its weights must not change meanwhile. A model that can
  // keep what it knows of a text overrides this: else append() computes the whole text again each time.
  virtual std::unique_ptr<GrowingText> begin_text();

  // See Task.
  [[nodiscard]] virtual std::int64_t uses_of_weights() const { return 1; }

 private:
  virtual torch::Tensor logits(const torch::Tensor& tokens, const DropoutPass& pass) = 0;
};

// The model of model.name, on the CPU, in fp32, weights from torch's generator. Throws c10::Error where the
// settings are no model.
std::shared_ptr<TextModel> make_text_model(const Settings& settings);

}  // namespace octavo::train
