// The tree of sums of formula/trust_ratio.h and formula/norm.h over an array in the device's memory, by one
// warp: neighbours in pairs, level by level. Missing values at the end count as zero, which changes no bit,
// because a sum of squares is never -0. So groups of kTreeGroup values, a power of two, are reduced one at a
// time.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/trust_ratio.h"

#include <cuda_runtime.h>

namespace octavo::cuda {

inline constexpr int kTreeLeaves = 32;  // neighbours that a lane adds
inline constexpr int kTreeGroup = 32 * kTreeLeaves;

// Other multiprocessors may have written these during this launch, so the load bypasses the first-level
// cache.
__device__ inline double tree_load(const double* at) { return __ldcg(at); }
__device__ inline formula::Sums tree_load(const formula::Sums* at) {
  const double2 both = __ldcg(reinterpret_cast<const double2*>(at));
  return {both.x, both.y};
}
__device__ inline double tree_exchange(double x, int apart) { return __shfl_xor_sync(~0U, x, apart); }
__device__ inline formula::Sums tree_exchange(const formula::Sums& x, int apart) {
  return {__shfl_xor_sync(~0U, x.weight, apart), __shfl_xor_sync(~0U, x.update, apart)};
}

// Returns the sum of one value per lane, in the order of the lanes.
template <class T>
__device__ inline T warp_tree(T mine) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) mine = mine + tree_exchange(mine, apart);
  return mine;
}

// Returns the sum of at most kTreeGroup values.
template <class T>
__device__ inline T group_tree(const T* values, std::int64_t count) {
  constexpr int kPart = 8;
  const std::int64_t first = (threadIdx.x & 31U) * kTreeLeaves;
  T parts[kTreeLeaves / kPart];
#pragma unroll
  for (int p = 0; p < kTreeLeaves / kPart; ++p) {
    T own[kPart];
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const std::int64_t at = first + p * kPart + i;
      own[i] = at < count ? tree_load(values + at) : T{};
    }
    parts[p] = formula::tree_sum(own, kPart);
  }
  return warp_tree(formula::tree_sum(parts, kTreeLeaves / kPart));
}

// Returns the sum of any number of values (zero for none) to every lane, and overwrites the values.
template <class T>
__device__ inline T sum_by_warp(T* values, std::int64_t count) {
  while (count > kTreeGroup) {
    const std::int64_t groups = (count + kTreeGroup - 1) / kTreeGroup;
    for (std::int64_t i = 0; i < groups; ++i) {
      const std::int64_t rest = count - i * kTreeGroup;
      const T sum = group_tree(values + i * kTreeGroup, rest < kTreeGroup ? rest : kTreeGroup);
      __syncwarp();  // all values of the group have been read
      if ((threadIdx.x & 31U) == 0) values[i] = sum;
    }
    __syncwarp();
    count = groups;
  }
  return group_tree(values, count);
}

}  // namespace octavo::cuda
