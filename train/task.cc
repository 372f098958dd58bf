// SPDX-License-Identifier: MIT
#include "task.h"

#include <torch/torch.h>

#include <utility>

namespace octavo::train {

const torch::Tensor& Batch::at(std::string_view name) const {
  for (const auto& [each, tensor] : tensors) {
    if (each == name) return tensor;
  }
  TORCH_CHECK(false, "a batch has no tensor of the name ", name);
}

Batch to_device(Batch batch, const torch::Device& device) {
  if (device.is_cpu()) return batch;
  for (auto& [name, tensor] : batch.tensors) {
    // Only from pinned memory does a copy not wait.
    const bool pins = device.is_cuda();
    tensor = (pins ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/pins);
  }
  return batch;
}

}  // namespace octavo::train
