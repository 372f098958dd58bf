// The kernels of NormOps: arithmetic on a few norms.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// The functions of NormOps. `parts` and `squares` are in device memory.
cudaError_t copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out, cudaStream_t stream);
cudaError_t join(const GradNorm* const* parts, std::int64_t count, double* squares, GradNorm* out,
                 cudaStream_t stream);
cudaError_t store_previous(const GradNorm* total, GradNorm* previous, cudaStream_t stream);
cudaError_t write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                         cudaStream_t stream);

}  // namespace octavo::cuda
