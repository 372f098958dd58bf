// SPDX-License-Identifier: MIT
#include "cuda/norm/norm_ops.h"

#include "cuda/norm/fixed_order_reduce.cuh"

namespace octavo::cuda {
namespace {

__global__ void copy_previous_kernel(const GradNorm* previous, const GradNorm* own, GradNorm* out) {
  out->l2 = previous->l2;
  out->max = previous->max;
  out->nonfinite = own->nonfinite;
}

// NaN stays NaN.
__device__ double larger(double a, double b) { return a != a || a > b ? a : b; }

constexpr int kJoinThreads = 256;

// Runs in one block, whose first warp adds.
__global__ void join_kernel(const GradNorm* const* parts, std::int64_t count, double* squares,
                            GradNorm* out) {
  __shared__ double max_of[kJoinThreads];
  __shared__ unsigned long long nonfinite;
  if (threadIdx.x == 0) nonfinite = 0;
  __syncthreads();
  double max = 0.0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const GradNorm part = *parts[i];
    squares[i] = part.l2 * part.l2;
    max = larger(max, part.max);
    if (part.nonfinite != 0) atomicAdd(&nonfinite, static_cast<unsigned long long>(part.nonfinite));
  }
  max_of[threadIdx.x] = max;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const double sum = sum_by_warp(squares, count);
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kJoinThreads; ++i) max = larger(max, max_of[i]);
  out->l2 = sqrt(sum);
  out->max = max;
  out->nonfinite = static_cast<std::int64_t>(nonfinite);
}

__global__ void store_previous_kernel(const GradNorm* total, GradNorm* previous) {
  if (isfinite(total->l2)) *previous = *total;
}

__global__ void write_report_kernel(const GradNorm* norm, const float* found_inf, StepReport* report) {
  const std::int64_t nonfinite = norm != nullptr ? norm->nonfinite : 0;
  report->skipped = nonfinite > 0 || (found_inf != nullptr && *found_inf != 0.0F);
  report->pending = false;
  report->nonfinite = nonfinite;
}

}  // namespace

cudaError_t copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out, cudaStream_t stream) {
  copy_previous_kernel<<<1, 1, 0, stream>>>(previous, own, out);
  return cudaGetLastError();
}

cudaError_t join(const GradNorm* const* parts, std::int64_t count, double* squares, GradNorm* out,
                 cudaStream_t stream) {
  join_kernel<<<1, kJoinThreads, 0, stream>>>(parts, count, squares, out);
  return cudaGetLastError();
}

cudaError_t store_previous(const GradNorm* total, GradNorm* previous, cudaStream_t stream) {
  store_previous_kernel<<<1, 1, 0, stream>>>(total, previous);
  return cudaGetLastError();
}

cudaError_t write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                         cudaStream_t stream) {
  write_report_kernel<<<1, 1, 0, stream>>>(norm, found_inf, report);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
