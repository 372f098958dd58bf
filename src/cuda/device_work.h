// The small kernels of an engine: step counts, and arithmetic on a few norms.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/table.h"

#include <octavo/grad_norm.h>
#include <octavo/optimizer.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// Adds one to each count, unless the step was skipped.
cudaError_t advance(const Prepared* prepared, std::int64_t* const* counts, std::int64_t count,
                    cudaStream_t stream);

// DeviceWork's functions; `parts` and `squares` are in device memory.
cudaError_t borrow(const GradNorm* previous, const GradNorm* own, GradNorm* out, cudaStream_t stream);
cudaError_t join(const GradNorm* const* parts, std::int64_t count, double* squares, GradNorm* out,
                 cudaStream_t stream);
cudaError_t keep(const GradNorm* total, GradNorm* previous, cudaStream_t stream);
cudaError_t tell(const GradNorm* norm, const float* found_inf, StepReport* report, cudaStream_t stream);

// Words from place to place in device memory, at most 32 each.
struct WordCopies {
  struct One {
    void* to;
    const void* from;
    std::int32_t words;
  };
  static constexpr std::int32_t kMost = 4;
  One of[kMost];
  std::int32_t count;
};
cudaError_t copy_words(const WordCopies& copies, cudaStream_t stream);

}  // namespace octavo::cuda
