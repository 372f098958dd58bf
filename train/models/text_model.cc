// SPDX-License-Identifier: MIT
#include "models/text_model.h"

#include "models/bdh.h"

#include <torch/torch.h>

namespace octavo::train {
namespace {

class RecomputedText : public GrowingText {
 public:
  explicit RecomputedText(TextModel& model) : model_(model) {}

  torch::Tensor append(const torch::Tensor& tokens) override {
    tokens_ = tokens_.defined() ? torch::cat({tokens_, tokens}) : tokens;
    return model_.forward(tokens_.unsqueeze(0)).index({0, -1});
  }

 private:
  TextModel& model_;
  torch::Tensor tokens_;
};

}  // namespace

std::unique_ptr<GrowingText> TextModel::begin_text() { return std::make_unique<RecomputedText>(*this); }

std::string_view model_name(ModelName name) {
  switch (name) {
    case ModelName::bdh:
      return "bdh";
  }
  return "unknown";
}

std::shared_ptr<TextModel> make_model(const ModelSettings& settings) {
  switch (settings.name) {
    case ModelName::bdh:
      return std::make_shared<BdhImpl>(BdhConfig{settings.n_layer, settings.n_embd, settings.n_head,
                                                 settings.mlp_internal_dim_multiplier, kByteVocabulary,
                                                 settings.dropout, settings.gradient_checkpointing});
  }
  TORCH_CHECK(false, "no model of number ", static_cast<int>(settings.name));
}

}  // namespace octavo::train
