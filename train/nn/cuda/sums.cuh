// Adds up the partial sums of blocks, [parts, columns]. The sums are in double and always in the same order,
// so that a result does not depend on the order in which blocks finish.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/vectors.cuh"

#include <cuda_runtime_api.h>

namespace octavo_train::cuda {

// `scaled`, if not null, receives the totals times `factor`.
static __global__ void __launch_bounds__(1024)
    column_sums_kernel(const float* partial, std::int64_t parts, std::int64_t columns, float* totals,
                       float* scaled, double factor) {
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  double sum = 0.0;
  if (column < columns) {
    for (std::int64_t part = threadIdx.y; part < parts; part += 32) sum += partial[part * columns + column];
  }
  sum = column_total(sum);
  if (threadIdx.y != 0 || column >= columns) return;
  totals[column] = static_cast<float>(sum);
  if (scaled != nullptr) scaled[column] = static_cast<float>(sum * factor);
}

inline void column_sums(const float* partial, std::int64_t parts, std::int64_t columns, float* totals,
                        float* scaled, double factor, cudaStream_t stream) {
  column_sums_kernel<<<static_cast<unsigned>(ceil_div(columns, 32)), dim3(32, 32), 0, stream>>>(
      partial, parts, columns, totals, scaled, factor);
}

}  // namespace octavo_train::cuda
