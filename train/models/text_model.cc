// SPDX-License-Identifier: MIT
#include "models/text_model.h"

#include "models/bdh.h"

namespace octavo::train {

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
