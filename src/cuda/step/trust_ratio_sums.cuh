// The sums of squares of a tile, by the tree of formula/trust_ratio.h: a lane adds its neighbouring elements,
// then lanes add in the order of their elements. Two values are summed; even lanes continue with one and odd
// lanes with the other, which saves half of the exchanges.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/tensor_table.h"
#include "formula/trust_ratio.h"

namespace octavo::cuda {

static_assert(formula::kSumTile == kTile);

// Products of floats are exact in double, so each fma rounds as the sum does.
__device__ inline double squares2(const float* x) {
  const auto even = static_cast<double>(x[0]);
  const auto odd = static_cast<double>(x[1]);
  return __fma_rn(odd, odd, even * even);
}
__device__ inline double squares4(const float* x) { return squares2(x) + squares2(x + 2); }
__device__ inline double squares8(const float* x) { return squares4(x) + squares4(x + 4); }

// Writes the sums of a tile from those of every lane's parts. The bits of an element's index are, from the
// lowest: those inside a part, those of the lane's number among `lanes` neighbours, those of the part, and
// the remaining bits of the lane.
template <int kParts>
__device__ inline void write_sums(const double (&weights)[kParts], const double (&updates)[kParts], int lanes,
                                  formula::Sums* out) {
  const bool odd = (threadIdx.x & 1U) != 0;
  double mine[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const double kept = odd ? updates[i] : weights[i];
    mine[i] = kept + __shfl_xor_sync(~0U, odd ? weights[i] : updates[i], 1);
  }
  for (int o = 2; o < lanes; o *= 2) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) mine[i] += __shfl_xor_sync(~0U, mine[i], o);
  }
#pragma unroll
  for (int size = kParts; size > 1; size /= 2) {
#pragma unroll
    for (int i = 0; i < size / 2; ++i) mine[i] = mine[2 * i] + mine[2 * i + 1];
  }
  double sum = mine[0];
  for (int o = lanes; o < 32; o *= 2) sum += __shfl_xor_sync(~0U, sum, o);
  if ((threadIdx.x & 31U) < 2U) (odd ? out->update : out->weight) = sum;
}

}  // namespace octavo::cuda
