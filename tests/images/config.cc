// Declares the config keys of the task `images` and of its model. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#include "tests/images/settings.h"
#include "train/config/checks.h"
#include "train/config/task_config.h"
#include "train/tasks/entry.h"

namespace octavo_train {
namespace {

constexpr std::string_view kConvNet = "convnet";

std::vector<Key> keys() {
  using I = ImageSettings;
  using C = ConvNetSettings;
  return {
      {"model.name", Setting{field(&ModelSettings::name, word({std::string(kConvNet)})), kConvNet},
       "which model to train"},
      {"model.n_block", Setting{field(&C::n_block, integer(1, 8)), "2"},
       "blocks of convolution, BatchNorm and ReLU; each halves the image"},
      {"model.width", Setting{field(&C::width, integer(1, 4096)), "16"}, "channels of a block"},
      {"model.gradient_checkpointing", Setting{field(&C::gradient_checkpointing, flag()), "false"},
       "compute a block's activations again in the backward pass instead of keeping them", Effect::none},
      {"data.image_size", Setting{field(&I::image_size, integer(4, 1024)), "16"},
       "pixels of a side of an image"},
      {"data.classes", Setting{field(&I::classes, integer(2, 4)), "4"}, "directions of stripes"},
      {"data.noise", Setting{field(&I::noise, real(kFraction)), "0.5"}, "share of noise in a pixel"},
      {"data.train_images", Setting{field(&I::train_images, integer(1, kMaxSize)), "512"},
       "images to train on"},
      {"data.validation_images", Setting{field(&I::validation_images, integer(1, kMaxSize)), "128"},
       "images to evaluate on, which are others"},
      // The task compares the images themselves; see ImageTask::open().
      {"data.generator_seed", Setting{field(&I::generator_seed, integer(0, kMaxSteps)), "1"},
       "images of another seed are other images", Effect::content},
  };
}

Status check(const Config& config) {
  const std::int64_t blocks = config.settings.task_settings.get<ConvNetSettings>().n_block;
  if (config.settings.task_settings.get<ImageSettings>().image_size >= std::int64_t{1} << blocks) return {};
  return clash_error(config, "model.n_block", "data.image_size",
                     "each block halves the image: image_size must be at least 2^n_block");
}

}  // namespace

TaskConfig images_task_config() {
  return {.name = "images",
          .meaning = "A classifier of images with stripes, which a generator makes.",
          .models = kConvNet,
          .metrics = {"loss", "accuracy"},
          .example =
              "model:    {name: convnet, n_block: 2}\n"
              "training: {learning_rate: 1.0e-2, max_steps: 60}\n",
          .takes = [](std::string_view model) { return model == kConvNet; },
          .keys = keys,
          .check = check,
          .check_complete = [](const Config& /*config*/) { return Status(); }};
}

}  // namespace octavo_train
