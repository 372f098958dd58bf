// The names of the public enums, and their parsing. There is one table per enum; everything else is generic.
// The names of algorithms are in descriptions.cc and those of formats in formats.cc.
// SPDX-License-Identifier: MIT
#include <octavo/types.h>

#include <array>
#include <string>

namespace octavo {
namespace {

template <class E>
struct Named {
  E value;
  std::string_view name;
  std::string_view also = {};  // another spelling that is accepted
};

constexpr std::array kDTypes = {Named<DType>{DType::f32, "fp32", "float32"},
                                Named<DType>{DType::bf16, "bf16", "bfloat16"},
                                Named<DType>{DType::f16, "fp16", "float16"}};
constexpr std::array kStores = {Named<WeightStore>{WeightStore::nearest, "nearest"},
                                Named<WeightStore>{WeightStore::stochastic, "stochastic"},
                                Named<WeightStore>{WeightStore::residual8, "bf16+8", "24"},
                                Named<WeightStore>{WeightStore::residual16, "bf16+16", "32"}};

template <class E, std::size_t kSize>
constexpr std::array<E, kSize> values_of(const std::array<Named<E>, kSize>& table) {
  std::array<E, kSize> out{};
  for (std::size_t i = 0; i < kSize; ++i) out[i] = table[i].value;
  return out;
}
constexpr auto kDTypeValues = values_of(kDTypes);
constexpr auto kStoreValues = values_of(kStores);

template <class E, std::size_t kSize>
std::string_view name_in(const std::array<Named<E>, kSize>& table, E value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

template <class E, std::size_t kSize>
Result<E> parse_in(const std::array<Named<E>, kSize>& table, std::string_view what, std::string_view text) {
  std::string known;
  for (const auto& entry : table) {
    if (text == entry.name || (!entry.also.empty() && text == entry.also)) return entry.value;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  return Status::invalid("[octavo] " + std::string(what) + ": got '" + std::string(text) +
                         "', expected one of " + known);
}

}  // namespace

std::string_view name(DType value) { return name_in(kDTypes, value); }
std::string_view name(WeightStore value) { return name_in(kStores, value); }

std::span<const DType> all_dtypes() { return kDTypeValues; }
std::span<const WeightStore> all_weight_stores() { return kStoreValues; }

Result<DType> parse_dtype(std::string_view text) { return parse_in(kDTypes, "dtype", text); }
Result<WeightStore> parse_weight_store(std::string_view text) { return parse_in(kStores, "store", text); }

std::int64_t dtype_bytes(DType value) { return value == DType::f32 ? 4 : 2; }

}  // namespace octavo
