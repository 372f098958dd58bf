// Computes one chunk of the gradient norm: sixteen double sums over interleaved elements, joined by a fixed
// tree, so that every instruction set gives the same bits. Squares of floats are exact in double.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "cpu/tile_io.h"

namespace octavo::cpu {

template <class L>
NormPart norm_chunk(const void* data, DType dtype, std::int64_t begin, std::int64_t count, float factor,
                    Scratch* scratch) {
  using I = typename L::I;
  using F = typename L::F;
  constexpr int kSums = formula::kNormSums;
  constexpr std::int64_t kStep = 64;
  constexpr std::int64_t kW = L::kWidth;
  static_assert(kStep % kSums == 0 && kStep % kW == 0 && kPad >= kStep);
  double sums[kSums] = {};
  I max_bits(0);
  I bad(0);
  for (std::int64_t at = begin; at < begin + count; at += kTile) {
    const std::int64_t n = begin + count - at < kTile ? begin + count - at : kTile;
    load_values<L>(data, dtype, at, n, scratch->grad);
    const std::int64_t padded = (n + kStep - 1) / kStep * kStep;
    for (std::int64_t i = n; i < padded; ++i) scratch->grad[i] = 0.0F;
    for (std::int64_t i = 0; i < padded; i += kW) {
      const F x = L::load(scratch->grad + i) * F(factor);
      const I b = bits(x) & I(0x7FFFFFFF);
      max_bits = max(max_bits, b);
      bad = bad + select(b > I(formula::kLargestSquarable), I(1), I(0));
      L::store(x, scratch->grad + i);
    }
    for (std::int64_t i = 0; i < padded; i += kSums) {
      for (int k = 0; k < kSums; ++k) {
        const double x = scratch->grad[i + k];
        sums[k] += x * x;
      }
    }
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  std::int32_t counts[kW];
  std::int64_t nonfinite = 0;
  float as_float[kW];
  L::store(from_bits(bad), as_float);
  for (std::int64_t k = 0; k < kW; ++k) {
    counts[k] = std::bit_cast<std::int32_t>(as_float[k]);
    nonfinite += counts[k];
  }
  return {sums[0], L::reduce_max_u31(max_bits), nonfinite};
}

}  // namespace octavo::cpu
