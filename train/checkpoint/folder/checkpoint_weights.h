// Reads the weights of a checkpoint in full precision, for other programs. bf16 weights are widened to fp32.
// If the optimizer's file has master bits for them, the result equals the weights that the run itself
// updates. Tensors are read and widened one at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/safetensors.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

class CheckpointWeights {
 public:
  // Opens the weights of a checkpoint folder `path`, whose model.safetensors must pass verification. The
  // optimizer's file is read and verified only if weights are in bf16.
  static Result<CheckpointWeights> open(const std::string& path);

  // Returns the tensors in the order of the file. They are valid as long as this object. A master's bits are
  // assumed to be in the order of a contiguous parameter; all tasks store them so.
  [[nodiscard]] std::vector<TensorSource> sources() const;

  [[nodiscard]] std::size_t widened() const { return widened_; }  // number of bf16 tensors
  [[nodiscard]] std::size_t masters() const { return masters_; }  // number of bf16 tensors with master bits

 private:
  explicit CheckpointWeights(Safetensors model) : model_(std::move(model)) {}
  Status check_masters(const std::string& path);
  [[nodiscard]] const StoredTensor* master_of(const StoredTensor& weight) const;

  Safetensors model_;
  std::optional<Safetensors> optimizer_;
  std::size_t widened_ = 0, masters_ = 0;
};

}  // namespace octavo_train
