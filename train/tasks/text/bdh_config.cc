// The config keys of BDH. A new model declares its keys in a file like this one.
// SPDX-License-Identifier: MIT
#include "train/config/checks.h"
#include "train/tasks/text/config.h"

namespace octavo_train {

std::vector<Key> bdh_keys() {
  using B = BdhSettings;
  return {
      {"model.n_layer", Setting{field(&B::n_layer, integer(1, 4096)), "6"}, "layers"},
      {"model.n_embd", Setting{field(&B::n_embd, integer(1, kMaxSize)), "256"}, "width of the embedding"},
      {"model.n_head", Setting{field(&B::n_head, integer(1, 4096)), "4"}, "attention heads"},
      {"model.mlp_internal_dim_multiplier",
       Setting{field(&B::mlp_internal_dim_multiplier, integer(1, 65536)), "128"},
       "sparse neurons per unit of n_embd, over all heads"},
      {"model.dropout", Setting{field(&B::dropout, real(kFraction)), "0.1"},
       "probability of dropping an activation"},
      {"model.gradient_checkpointing", Setting{field(&B::gradient_checkpointing, flag()), "false"},
       "compute activations again in the backward pass instead of keeping them: slower, less memory",
       Effect::none},
  };
}

// The neurons are divided among the heads, and rotary attention (RoPE) uses them in pairs.
Status check_bdh(const Config& config) {
  const auto& model = config.settings.own.get<BdhSettings>();
  if (model.n_embd * model.mlp_internal_dim_multiplier % (2 * model.n_head) == 0) return {};
  return Status::invalid(clash(config, "model.n_head", "model.n_embd",
                               "n_embd * mlp_internal_dim_multiplier must be a multiple of 2 * n_head"));
}

}  // namespace octavo_train
