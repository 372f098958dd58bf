// The settings of the task `text` and its models: one field per key of config.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

struct TextSettings {
  std::optional<std::vector<std::string>> train;
  std::optional<std::vector<std::string>> validation;
  std::int64_t block_size = 0;
  std::int64_t sample_tokens = 0;
};

struct BdhSettings {
  std::int64_t n_layer = 0;
  std::int64_t n_embd = 0;
  std::int64_t n_head = 0;
  std::int64_t mlp_internal_dim_multiplier = 0;
  double dropout = 0;
  bool gradient_checkpointing = false;
};

}  // namespace octavo_train
