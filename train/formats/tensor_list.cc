// See tensor_list.h.
// SPDX-License-Identifier: MIT
#include "train/formats/tensor_list.h"

#include "train/formats/safetensors_format.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace octavo_train {

Result<TensorList> TensorList::of(std::vector<StoredTensor> tensors) {
  TensorList stored;
  stored.tensors_ = std::move(tensors);
  const auto name_of = [&](std::size_t index) -> std::string_view { return stored.tensors_[index].name; };
  std::vector<std::size_t>& index = stored.by_name_;
  index.resize(stored.tensors_.size());
  std::iota(index.begin(), index.end(), std::size_t{0});
  std::ranges::sort(index, {}, name_of);
  const auto twin = std::ranges::adjacent_find(index, {}, name_of);
  if (twin != index.end()) return Status::invalid("tensor " + quote_name(name_of(*twin)) + ": given twice");
  return stored;
}

const StoredTensor* TensorList::find(std::string_view name) const {
  const auto name_of = [&](std::size_t index) -> std::string_view { return tensors_[index].name; };
  const auto place = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return place != by_name_.end() && name_of(*place) == name ? &tensors_[*place] : nullptr;
}

}  // namespace octavo_train
