// Converts weights between fp32 and bf16 with residuals, outside a step. It calls the functions of a step
// (formula/narrow.h) for each element.
// SPDX-License-Identifier: MIT
#include "formula/narrow.h"
#include "status/first_error.h"

#include <octavo/codec.h>

#include <cstring>
#include <string>

namespace octavo {
namespace {

using scalar::F32;
using scalar::I32;

// A residual in memory: int8 or int16 elements without alignment.
template <class R>
R residual_at(std::span<const std::byte> residual, std::size_t i) {
  R value;
  std::memcpy(&value, residual.data() + i * sizeof(R), sizeof(R));
  return value;
}
template <class R>
void set_residual(std::span<std::byte> residual, std::size_t i, I32 wide) {
  const R value = static_cast<R>(wide.v);
  std::memcpy(residual.data() + i * sizeof(R), &value, sizeof(R));
}

Status check_sizes(const std::string& where, WeightStore store, std::size_t weights, std::size_t values,
                   std::size_t residual) {
  if (static_cast<std::uint32_t>(store) > static_cast<std::uint32_t>(WeightStore::residual16))
    return Status::invalid(where, " store: got ", static_cast<std::uint32_t>(store), ", expected 0 to 3");
  if (weights != values)
    return Status::invalid(where, " weights: got ", weights, " elements, expected the number of values, ",
                           values);
  const auto expected = static_cast<std::size_t>(residual_bytes(store, static_cast<std::int64_t>(values)));
  if (residual != expected)
    return Status::invalid(where, " residual: got ", residual, " bytes, expected ", expected);
  return {};
}

}  // namespace

std::int64_t residual_bytes(WeightStore store, std::int64_t numel) {
  if (store == WeightStore::residual8) return numel;
  return store == WeightStore::residual16 ? 2 * numel : 0;
}

Status join_weights(WeightStore store, std::span<const std::uint16_t> weights,
                    std::span<const std::byte> residual, std::span<float> values) {
  OCTAVO_TRY(check_sizes("[join_weights]", store, weights.size(), values.size(), residual.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const I32 weight(weights[i]);
    switch (store) {
      case WeightStore::nearest:
      case WeightStore::stochastic:
        values[i] = formula::bf16_to_float(weight).v;
        break;
      case WeightStore::residual8:
        values[i] = formula::join8(weight, I32(residual_at<std::int8_t>(residual, i))).v;
        break;
      case WeightStore::residual16:
        values[i] = formula::join16(weight, I32(residual_at<std::int16_t>(residual, i))).v;
        break;
    }
  }
  return {};
}

Status split_weights(WeightStore store, std::span<const float> values, std::span<std::uint16_t> weights,
                     std::span<std::byte> residual) {
  OCTAVO_TRY(check_sizes("[split_weights]", store, weights.size(), values.size(), residual.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    formula::Split<I32> split{};
    switch (store) {
      case WeightStore::nearest:
      case WeightStore::stochastic:
        split.weight = formula::float_to_bf16(F32(values[i]));
        break;
      case WeightStore::residual8:
        split = formula::split8(F32(values[i]));
        set_residual<std::int8_t>(residual, i, split.residual);
        break;
      case WeightStore::residual16:
        split = formula::split16(F32(values[i]));
        set_residual<std::int16_t>(residual, i, split.residual);
        break;
    }
    weights[i] = static_cast<std::uint16_t>(split.weight.v);
  }
  return {};
}

}  // namespace octavo
