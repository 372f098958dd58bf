// The host's interface to the dropout kernels.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/dropout.h"

#include <octavo/types.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

struct DropWork {
  const void* from;
  void* to;
  const std::int64_t* samples;
  std::int64_t numel, batch, inner;
  std::int64_t row, rows, pitch;  // as in DropoutRows
  std::uint64_t base;             // formula::dropout_base
  std::uint32_t layer;
  DType dtype;
  formula::Dropout how;
};
// REQUIRES: at least one element; row * rows == inner.
cudaError_t drop(const DropWork& work, cudaStream_t stream);

}  // namespace octavo::cuda
