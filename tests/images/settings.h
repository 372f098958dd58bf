// The settings of the task `images` and of its model: one field per config key in config.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train {

struct ImageSettings {
  std::int64_t image_size = 0;
  std::int64_t classes = 0;
  double noise = 0;
  std::int64_t train_images = 0;
  std::int64_t validation_images = 0;
  std::int64_t generator_seed = 0;
};

struct ConvNetSettings {
  std::int64_t n_block = 0;
  std::int64_t width = 0;
  bool gradient_checkpointing = false;
};

}  // namespace octavo_train
