// The tensors of an opened file, in the order of the file and by name. Every reader of weights returns them.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

using Bytes = std::span<const std::byte>;

struct StoredTensor {
  std::string name;
  std::string dtype;  // spelled as in safetensors.h
  std::vector<std::int64_t> shape;
  Bytes bytes;  // contiguous; valid while the file is open; aligned only if the writer aligned it, as ours do
};

class TensorList {
 public:
  TensorList() = default;
  // Returns an error if two tensors have the same name.
  static Result<TensorList> of(std::vector<StoredTensor> tensors);

  [[nodiscard]] std::span<const StoredTensor> all() const { return tensors_; }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;  // nullptr if there is none

 private:
  std::vector<StoredTensor> tensors_;
  std::vector<std::size_t> by_name_;  // indices of tensors_
};

}  // namespace octavo_train
