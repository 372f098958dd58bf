// Helpers for complete runs of the task `images`; several runs share one process.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/train/run_support.h"
#include "train/formats/safetensors.h"

#include <cstring>
#include <string>

namespace octavo_train {

inline constexpr const char* kTask = R"(model: {name: convnet, n_block: 2, width: 8}
data: {image_size: 16, train_images: 256, validation_images: 64, dataloader_num_workers: 0}
training:
  optimizer: adamw_8bit
  learning_rate: 1.0e-2
  compute_dtype: float32
  per_device_train_batch_size: 8
  per_device_eval_batch_size: 64
  max_steps: 12
  eval_steps: 6
  save_steps: 4
  logging_steps: 2
  device: cpu
)";

class ImageRun : public TinyRun {
 public:
  ImageRun(const TempFolder& folder, const std::string& name) : TinyRun(folder.path(), name) {
    yaml = kTask + ("output_dir: \"" + out + "\"\n");
  }
  // Returns the bytes of one tensor of the saved model.
  [[nodiscard]] std::string tensor(std::int64_t step, const std::string& name) const {
    const auto file = Safetensors::open(checkpoint(step) + "/model.safetensors");
    for (const StoredTensor& found : file->tensors()) {
      if (found.name != name) continue;
      std::string bytes(found.bytes.size(), '\0');
      std::memcpy(bytes.data(), found.bytes.data(), bytes.size());
      return bytes;
    }
    ADD_FAILURE() << "there is no " << name;
    return {};
  }
  [[nodiscard]] std::int64_t counter(std::int64_t step, const std::string& norm) const {
    std::int64_t value = 0;
    std::memcpy(&value, tensor(step, norm + ".num_batches_tracked").data(), sizeof value);
    return value;
  }
};

}  // namespace octavo_train
