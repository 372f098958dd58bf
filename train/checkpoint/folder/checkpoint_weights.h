// The weights of a checkpoint in full precision, for other programs. bf16 weights are widened to fp32, and
// with the master bits that the optimizer's file has beside them they are what the run itself steps from.
// Tensors are read and widened one at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/formats/safetensors.h"

#include <octavo/status.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

class CheckpointWeights {
 public:
  // `path` is a checkpoint's folder whose model.safetensors verifies. The optimizer's file is read, and
  // verified, only where weights are in bf16.
  static Result<CheckpointWeights> open(const std::string& path);

  // In the order of the file. They live as long as this. A master's bits are taken to be in the order of a
  // contiguous parameter, as all tasks have them.
  [[nodiscard]] std::vector<TensorSource> sources() const;

  [[nodiscard]] std::size_t widened() const { return widened_; }  // tensors in bf16
  [[nodiscard]] std::size_t masters() const { return masters_; }  // those of them that have further bits

 private:
  explicit CheckpointWeights(Safetensors model) : model_(std::move(model)) {}
  Status check_masters(const std::string& path);
  [[nodiscard]] const StoredTensor* master_of(const StoredTensor& weight) const;

  Safetensors model_;
  std::optional<Safetensors> optimizer_;
  std::size_t widened_ = 0, masters_ = 0;
};

}  // namespace octavo::train
