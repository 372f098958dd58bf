// Loads and stores one weight of a tensor as a float, for each kind of weight: tails, unaligned tensors, and
// elements that the vector path cannot handle.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/element_io.cuh"
#include "cuda/step/kernels.h"
#include "cuda/step/tensor_table.h"
#include "formula/narrow.h"

namespace octavo::cuda {

template <WeightKind kKind>
__device__ inline float load_weight(const TensorEntry& t, std::int64_t at) {
  const auto weight = [&] { return scalar::I32(static_cast<const std::uint16_t*>(t.param)[at]); };
  if constexpr (kKind == WeightKind::residual16) {
    return formula::join16(weight(), scalar::I32(static_cast<const std::int16_t*>(t.residual)[at])).v;
  } else if constexpr (kKind == WeightKind::residual8) {
    return formula::join8(weight(), scalar::I32(static_cast<const std::int8_t*>(t.residual)[at])).v;
  } else {
    return load_one(t.param, t.param_dtype, at);
  }
}

template <WeightKind kKind>
__device__ inline void store_weight(const TensorEntry& t, std::uint64_t round_base, std::int64_t at,
                                    float x) {
  const scalar::F32 value = formula::canonical(scalar::F32(x));
  auto* halves = static_cast<std::uint16_t*>(t.param);
  const auto put = [&](scalar::I32 half) { halves[at] = static_cast<std::uint16_t>(half.u()); };
  if constexpr (kKind == WeightKind::f32) {
    static_cast<float*>(t.param)[at] = value.v;
  } else if constexpr (kKind == WeightKind::half) {
    put(is_bf16(t.param_dtype) ? formula::float_to_bf16(value) : formula::float_to_fp16(value));
  } else if constexpr (kKind == WeightKind::stochastic) {
    const formula::RoundKey key = formula::round_key(round_base, t.id, 0);
    const auto random = formula::random16(key, static_cast<std::uint64_t>(t.offset + at), scalar::I32(0));
    put(formula::float_to_bf16_stochastic(value, random));
  } else if constexpr (kKind == WeightKind::residual16) {
    const auto split = formula::split16(value);
    put(split.weight);
    static_cast<std::int16_t*>(t.residual)[at] = static_cast<std::int16_t>(split.residual.v);
  } else {
    const auto split = formula::split8(value);
    put(split.weight);
    static_cast<std::int8_t*>(t.residual)[at] = static_cast<std::int8_t>(split.residual.v);
  }
}

}  // namespace octavo::cuda
