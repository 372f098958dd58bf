// The kernels of FP8's casts and scales as the host sees them.
// SPDX-License-Identifier: MIT
#pragma once

#include "fp8/column_sums.h"

#include <octavo/fp8.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// Returns true if a kernel may begin before its predecessor has ended. `arch` is numbered as in
// cuda/runtime/arch.h.
constexpr bool launches_early(int arch) { return arch >= 900; }

// A matrix of codes that is written.
struct CodesWork {
  std::uint8_t* data;   // null: not wanted
  float* inverse;       // where maxima are gathered, too, when they are not known beforehand
  const float* scale;   // delayed alone
  std::int64_t scales;  // of a group; 0 where all groups have one
  std::int64_t across;  // `tile_1x128` only: from a tile's scale to that of the next tile in the row
  fp8::Element element;
};

struct CastWork {
  const void* from;  // [groups, rows, columns]
  DType dtype;
  std::int64_t groups, rows, columns;
  fp8::Recipe recipe;
  fp8::Tiling tiling;
  fp8::Activation activation;
  CodesWork by_rows, transposed;
  float* amax;  // null: not wanted
  bool alike;   // both matrices are wanted, and an element has one code in both
  // [tiles of 128 rows, columns]: the sums of `from` over a tile's rows, of one group; null: not wanted.
  float* sums;
};
// REQUIRES: at least one element; data at multiples of 16 bytes. `arch`: the device's.
cudaError_t cast_fp8(const CastWork& work, int arch, cudaStream_t stream);

// One level of the tree over rows: to[i, c] = the sum of from[32 i .. 32 i + 31, c]; `last` makes a zero plus
// zero.
using fp8::kSumRows;
cudaError_t sum_rows(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool last,
                     cudaStream_t stream);

cudaError_t update_fp8_scales(const fp8::ScaleUpdate& update, cudaStream_t stream);

}  // namespace octavo::cuda
