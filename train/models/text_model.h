// A model of text that the trainer can train: bytes in, logits out. A new one also needs a name in ModelName
// and schema.cc, a line in make_model, and its rules about sizes in config/checks.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string_view>

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
  // Tokens [batch, length] (int64) to logits [batch, length, vocabulary].
  virtual torch::Tensor forward(const torch::Tensor& tokens) = 0;

  // An empty text; the model must outlive it, and its weights must not change meanwhile. A model that can
  // keep what it knows of a text overrides this: else append() computes the whole text again each time.
  virtual std::unique_ptr<GrowingText> begin_text();
};

std::string_view model_name(ModelName name);  // as the config has it

// On the CPU, in fp32, weights from torch's generator. Throws c10::Error where the settings are no model.
std::shared_ptr<TextModel> make_model(const ModelSettings& settings);

}  // namespace octavo::train
