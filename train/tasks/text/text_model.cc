// SPDX-License-Identifier: MIT
#include "train/tasks/text/text_model.h"

#include "train/tasks/text/bdh.h"
#include "train/tasks/text/settings.h"

#include <torch/torch.h>

namespace octavo_train {
namespace {

class RecomputedText : public GenerationState {
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

std::unique_ptr<GenerationState> TextModel::begin_text() { return std::make_unique<RecomputedText>(*this); }

std::shared_ptr<TextModel> make_text_model(const Settings& settings) {
  TORCH_CHECK(settings.model.name == "bdh", "there is no model of text of the name ", settings.model.name);
  const auto& bdh = settings.task_settings.get<BdhSettings>();
  return std::make_shared<BdhImpl>(BdhConfig{bdh.n_layer, bdh.n_embd, bdh.n_head,
                                             bdh.mlp_internal_dim_multiplier, kByteVocabulary, bdh.dropout,
                                             bdh.gradient_checkpointing});
}

}  // namespace octavo_train
