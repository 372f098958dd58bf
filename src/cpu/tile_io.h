// Converts between tensors of any element type and fp32 tiles: reads gradients, and reads and writes weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "formula/narrow.h"

#include <cstring>

namespace octavo::cpu {

// Reads full vectors while they fit and copies the rest to a padded buffer: load(p) reads W elements.
template <class L, class T, class Load>
inline void widen(const T* from, std::int64_t n, float* to, Load&& load) {
  constexpr std::int64_t kW = L::kWidth;
  std::int64_t i = 0;
  for (; i + kW <= n; i += kW) L::store(load(from + i), to + i);
  if (i < n) {
    T tail[kW] = {};
    std::memcpy(tail, from + i, static_cast<std::size_t>(n - i) * sizeof(T));
    L::store(load(tail), to + i);
  }
}

// Writes in the same way: store(value, p) writes W elements.
template <class L, class T, class Store>
inline void narrow(const float* from, std::int64_t n, T* to, Store&& store) {
  constexpr std::int64_t kW = L::kWidth;
  std::int64_t i = 0;
  for (; i + kW <= n; i += kW) store(L::load(from + i), to + i, i);
  if (i < n) {
    T tail[kW];
    store(L::load(from + i), tail, i);
    std::memcpy(to + i, tail, static_cast<std::size_t>(n - i) * sizeof(T));
  }
}

template <class L>
inline void load_values(const void* data, DType dtype, std::int64_t at, std::int64_t n, float* to) {
  switch (dtype) {
    case DType::f32:
      widen<L>(static_cast<const float*>(data) + at, n, to, [](const float* p) { return L::load(p); });
      break;
    case DType::bf16:
      widen<L>(static_cast<const std::uint16_t*>(data) + at, n, to,
               [](const std::uint16_t* p) { return formula::bf16_to_float(L::load_u16(p)); });
      break;
    case DType::f16:
      widen<L>(static_cast<const std::uint16_t*>(data) + at, n, to,
               [](const std::uint16_t* p) { return formula::fp16_to_float(L::load_u16(p)); });
      break;
  }
}

template <class L>
inline void store_values(const float* from, std::int64_t n, void* data, DType dtype, std::int64_t at) {
  using F = typename L::F;
  switch (dtype) {
    case DType::f32:
      narrow<L>(from, n, static_cast<float*>(data) + at, [](F x, float* p, std::int64_t) { L::store(x, p); });
      break;
    case DType::bf16:
      narrow<L>(from, n, static_cast<std::uint16_t*>(data) + at,
                [](F x, std::uint16_t* p, std::int64_t) { L::store_u16(formula::float_to_bf16(x), p); });
      break;
    case DType::f16:
      narrow<L>(from, n, static_cast<std::uint16_t*>(data) + at,
                [](F x, std::uint16_t* p, std::int64_t) { L::store_u16(formula::float_to_fp16(x), p); });
      break;
  }
}

template <class L>
inline void store_bf16_stochastic(const float* from, std::int64_t n, std::uint16_t* to, formula::RoundKey key,
                                  std::uint64_t index) {
  using F = typename L::F;
  using I = typename L::I;
  narrow<L>(from, n, to, [&](F x, std::uint16_t* p, std::int64_t i) {
    const I random = formula::random16(key, index + static_cast<std::uint64_t>(i), L::iota());
    L::store_u16(formula::float_to_bf16_stochastic(x, random), p);
  });
}

// Two arrays together contain a master weight. `at` counts elements from the start of the tensor.
template <class L>
inline void load_weights(const StepTask& t, std::int64_t at, std::int64_t n, float* to) {
  using I = typename L::I;
  constexpr std::int64_t kW = L::kWidth;
  const auto join = [&]<class R>(const R* residuals, auto&& value) {
    const auto* weights = static_cast<const std::uint16_t*>(t.param) + at;
    residuals += at;
    std::int64_t i = 0;
    for (; i + kW <= n; i += kW) L::store(value(L::load_u16(weights + i), residuals + i), to + i);
    if (i < n) {
      std::uint16_t w[kW] = {};
      R r[kW] = {};
      std::memcpy(w, weights + i, static_cast<std::size_t>(n - i) * sizeof(w[0]));
      std::memcpy(r, residuals + i, static_cast<std::size_t>(n - i) * sizeof(r[0]));
      L::store(value(L::load_u16(w), r), to + i);
    }
  };
  switch (t.store) {
    case WeightStore::nearest:
    case WeightStore::stochastic:
      load_values<L>(t.param, t.param_dtype, at, n, to);
      break;
    case WeightStore::residual8:
      join(static_cast<const std::int8_t*>(t.residual),
           [](I w, const std::int8_t* r) { return formula::join8(w, L::load_i8(r)); });
      break;
    case WeightStore::residual16:
      join(static_cast<const std::int16_t*>(t.residual),
           [](I w, const std::int16_t* r) { return formula::join16(w, L::load_i16(r)); });
      break;
  }
}

template <class L>
inline void store_weights(const StepTask& t, const float* from, std::int64_t at, std::int64_t n) {
  using F = typename L::F;
  const auto halves = [&](auto&& split) {
    narrow<L>(from, n, static_cast<std::uint16_t*>(t.param) + at,
              [&](F x, std::uint16_t* p, std::int64_t) { L::store_u16(split(x).weight, p); });
  };
  switch (t.store) {
    case WeightStore::nearest:
      store_values<L>(from, n, t.param, t.param_dtype, at);
      break;
    case WeightStore::stochastic:
      store_bf16_stochastic<L>(from, n, static_cast<std::uint16_t*>(t.param) + at, t.keys[0],
                               t.index + static_cast<std::uint64_t>(at - t.begin));
      break;
    case WeightStore::residual8:
      halves([](F x) { return formula::split8(x); });
      narrow<L>(from, n, static_cast<std::int8_t*>(t.residual) + at,
                [](F x, std::int8_t* p, std::int64_t) { L::store_i8(formula::split8(x).residual, p); });
      break;
    case WeightStore::residual16:
      halves([](F x) { return formula::split16(x); });
      narrow<L>(from, n, static_cast<std::int16_t*>(t.residual) + at,
                [](F x, std::int16_t* p, std::int64_t) { L::store_i16(formula::split16(x).residual, p); });
      break;
  }
}

}  // namespace octavo::cpu
