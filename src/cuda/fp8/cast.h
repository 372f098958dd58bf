// The host's interface of the kernels for FP8 casts and scales.
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

// A matrix of codes that a cast writes.
struct CodesWork {
  std::uint8_t* data;   // null: not wanted
  float* inverse;       // has the maxima first if they are not known before the cast
  const float* scale;   // delayed only
  std::int64_t scales;  // scales of a group; 0 if all groups share one
  std::int64_t across;  // `tile_1x128` only: the distance to the scale of the next tile in the row
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
  bool alike;   // both matrices are wanted, and an element has the same code in both
  // [tiles of 128 rows, columns]: the sums of `from` over the rows of each tile, for one group; null: not
  // wanted.
  float* sums;
};
// REQUIRES: at least one element; data at multiples of 16 bytes. `arch` is the device's.
cudaError_t cast_fp8(const CastWork& work, int arch, cudaStream_t stream);

// Computes one level of the tree over rows: to[i, c] = the sum of from[32 i .. 32 i + 31, c]. With `last`, a
// zero sum becomes +0.
using fp8::kSumRows;
cudaError_t sum_rows(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool last,
                     cudaStream_t stream);

cudaError_t update_fp8_scales(const fp8::ScaleUpdate& update, cudaStream_t stream);

}  // namespace octavo::cuda
