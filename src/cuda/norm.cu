// The gradient norm on a GPU, with the sums of the CPU (formula/norm.h). Sixteen lanes take a chunk, a sum
// each; there are enough chunks to keep the memory busy.
// SPDX-License-Identifier: MIT
#include "cuda/element_io.cuh"
#include "cuda/kernels.h"
#include "cuda/tree.cuh"
#include "formula/norm.h"

namespace octavo::cuda {
namespace {

using formula::kNormChunk;
constexpr int kSums = formula::kNormSums;
constexpr int kNormThreads = 64;  // few chunks are to be spread over many multiprocessors

template <DType kDtype>
__device__ inline float read(const void* data, std::int64_t at) {
  if constexpr (kDtype == DType::f32) return __ldcs(static_cast<const float*>(data) + at);
  const scalar::I32 half(__ldcs(static_cast<const unsigned short*>(data) + at));
  if constexpr (kDtype == DType::bf16) return formula::bf16_to_float(half).v;
  return formula::fp16_to_float(half).v;
}

// One of a chunk's sums: every kSums-th element from `i` on.
struct Sum {
  double squares = 0.0;
  std::uint32_t max_bits = 0;
  unsigned bad = 0;

  __device__ void add(float x) {
    const std::uint32_t b = __float_as_uint(x) & 0x7FFFFFFFU;
    max_bits = max(max_bits, b);
    bad += b > static_cast<std::uint32_t>(formula::kLargestSquarable) ? 1U : 0U;
    squares = fma(static_cast<double>(x), static_cast<double>(x), squares);  // the product is exact
  }

  // The additions wait for one another, the loads must not: many at a time, and the next ones before these
  // are added.
  template <DType kDtype>
  __device__ void add_all(const void* data, std::int64_t i, std::int64_t end) {
    constexpr int kAhead = 16;
    constexpr std::int64_t kStep = kAhead * kSums;
    const auto whole = [&](std::int64_t first) { return first + kStep - kSums < end; };
    float x[kAhead];
    if (whole(i)) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) x[j] = read<kDtype>(data, i + j * kSums);
      for (; whole(i); i += kStep) {
        float next[kAhead] = {};
        if (whole(i + kStep)) {
#pragma unroll
          for (int j = 0; j < kAhead; ++j) next[j] = read<kDtype>(data, i + kStep + j * kSums);
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) add(x[j]);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) x[j] = next[j];
      }
    }
    for (; i < end; i += kSums) add(read<kDtype>(data, i));
  }
};

__global__ void chunk_kernel(const NormEntry* entries, std::int64_t tensors, std::int64_t chunks,
                             double* sums, NormTotals* totals) {
  const std::int64_t chunk =
      static_cast<std::int64_t>(blockIdx.x) * (kNormThreads / kSums) + threadIdx.x / kSums;
  const int k = static_cast<int>(threadIdx.x % kSums);
  Sum own;
  if (chunk < chunks) {
    std::int64_t low = 0;
    std::int64_t high = tensors;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (entries[middle].first_chunk <= chunk ? low : high) = middle;
    }
    const NormEntry& t = entries[low];
    const std::int64_t begin = (chunk - t.first_chunk) * kNormChunk;
    const std::int64_t end = min(t.numel, begin + kNormChunk);
    const auto dtype = static_cast<std::uint8_t>(t.dtype);
    if (is_f32(dtype)) {
      own.add_all<DType::f32>(t.data, begin + k, end);
    } else if (is_bf16(dtype)) {
      own.add_all<DType::bf16>(t.data, begin + k, end);
    } else {
      own.add_all<DType::f16>(t.data, begin + k, end);
    }
  }
  double sum = own.squares;
  for (int half = kSums / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0U, sum, half, kSums);
  if (k == 0 && chunk < chunks) sums[chunk] = sum;
  const unsigned max_bits = warp_max(own.max_bits);
  const unsigned bad = warp_sum(own.bad);
  if (threadIdx.x % 32 == 0) {
    if (max_bits != 0) atomicMax(&totals->max_bits, max_bits);
    if (bad != 0) atomicAdd(&totals->nonfinite, static_cast<unsigned long long>(bad));
  }
}

// One warp.
__global__ void tree_kernel(double* values, std::int64_t count, const NormTotals* totals, GradNorm* out) {
  const double sum = sum_by_warp(values, count);
  if (threadIdx.x == 0) {
    out->l2 = sqrt(sum);
    out->max = static_cast<double>(formula::canonical(scalar::F32(__uint_as_float(totals->max_bits))).v);
    out->nonfinite = static_cast<std::int64_t>(totals->nonfinite);
  }
}

}  // namespace

cudaError_t norm(const NormEntry* entries, std::int64_t tensors, std::int64_t chunks, double* sums,
                 NormTotals* totals, GradNorm* out, cudaStream_t stream) {
  if (chunks > 0) {
    constexpr std::int64_t kPerBlock = kNormThreads / kSums;
    chunk_kernel<<<static_cast<unsigned>((chunks + kPerBlock - 1) / kPerBlock), kNormThreads, 0, stream>>>(
        entries, tensors, chunks, sums, totals);
  }
  tree_kernel<<<1, 32, 0, stream>>>(sums, chunks, totals, out);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
