// See tensor_list.h.
// SPDX-License-Identifier: MIT
#include "train/formats/tensor_list.h"

#include "train/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::array<std::pair<std::string_view, std::size_t>, 16> kDtypes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"U16", 2},
    {"I16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"U32", 4},
    {"I32", 4},
    {"F32", 4},
    {"U64", 8},
    {"I64", 8},
    {"F64", 8},
}};

}  // namespace

std::size_t element_size(std::string_view dtype) {
  for (const auto& [name, size] : kDtypes)
    if (name == dtype) return size;
  return 0;
}

std::string known_dtypes() {
  return joined(kDtypes, " ", [](const auto& each) { return each.first; });
}

std::optional<std::uint64_t> tensor_bytes(std::string_view dtype, std::span<const std::int64_t> shape) {
  constexpr auto kLimit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = element_size(dtype);
  if (bytes == 0) return std::nullopt;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    const auto factor = static_cast<std::uint64_t>(extent);
    if (factor != 0 && bytes > kLimit / factor) return std::nullopt;
    bytes *= factor;
  }
  return bytes;
}

std::string quote_name(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  const bool cut = name.size() > kLongest;
  return nlohmann::json(name.substr(0, kLongest))
             .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
         (cut ? "…" : "");
}

std::string shape_text(std::span<const std::int64_t> shape) {
  constexpr std::size_t kMost = 16;
  const std::string text = joined(shape.first(std::min(shape.size(), kMost)), ", ",
                                  [](std::int64_t extent) { return std::to_string(extent); });
  return "[" + text + (shape.size() > kMost ? ", …]" : "]");
}

Status check_unique(const TensorSource& source, std::set<std::string_view>& names) {
  const char* const problem = !names.insert(source.name).second ? "given twice; names must differ"
                              : !source.bytes                   ? "has no function that returns its bytes"
                                                                : nullptr;
  return problem == nullptr ? Status() : invalid_error("tensor {}: {}", quote_name(source.name), problem);
}

Result<Bytes> bytes_of(const TensorSource& source) {
  ASSIGN_OR_RETURN(const Bytes bytes, source.bytes());
  const std::uint64_t expected = tensor_bytes(source.dtype, source.shape).value_or(0);
  if (bytes.size() == expected) return bytes;
  return invalid_error("{} bytes given, expected {} for {} {}", bytes.size(), expected, source.dtype,
                       shape_text(source.shape));
}

Result<TensorList> TensorList::of(std::vector<StoredTensor> tensors) {
  TensorList stored;
  stored.tensors_ = std::move(tensors);
  const auto name_of = [&](std::size_t index) -> std::string_view { return stored.tensors_[index].name; };
  std::vector<std::size_t>& index = stored.by_name_;
  index.resize(stored.tensors_.size());
  std::iota(index.begin(), index.end(), std::size_t{0});
  std::ranges::sort(index, {}, name_of);
  const auto twin = std::ranges::adjacent_find(index, {}, name_of);
  if (twin != index.end()) return invalid_error("tensor {}: given twice", quote_name(name_of(*twin)));
  return stored;
}

const StoredTensor* TensorList::find(std::string_view name) const {
  const auto name_of = [&](std::size_t index) -> std::string_view { return tensors_[index].name; };
  const auto place = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return place != by_name_.end() && name_of(*place) == name ? &tensors_[*place] : nullptr;
}

}  // namespace octavo_train
