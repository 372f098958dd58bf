// The gradient norm on a GPU, with the sums of the CPU (formula/norm.h). Sixteen lanes take a chunk, a sum
// each; there are enough chunks to keep the memory busy.
// SPDX-License-Identifier: MIT
#include "cuda/element_io.cuh"
#include "cuda/kernels.h"
#include "formula/norm.h"

namespace octavo::cuda {
namespace {

using formula::kNormChunk;
constexpr int kSums = formula::kNormSums;
constexpr int kNormThreads = 256;

struct Reader {
  const void* data;
  std::uint8_t dtype;
  __device__ float operator()(std::int64_t at) const {
    if (is_f32(dtype)) return __ldcs(static_cast<const float*>(data) + at);
    const scalar::I32 half(__ldcs(static_cast<const unsigned short*>(data) + at));
    return is_bf16(dtype) ? formula::bf16_to_float(half).v : formula::fp16_to_float(half).v;
  }
};

__global__ void chunk_kernel(const NormEntry* entries, std::int64_t tensors, std::int64_t chunks,
                             double* sums, NormTotals* totals) {
  const std::int64_t chunk =
      static_cast<std::int64_t>(blockIdx.x) * (kNormThreads / kSums) + threadIdx.x / kSums;
  const int k = static_cast<int>(threadIdx.x % kSums);
  double sum = 0.0;
  std::uint32_t max_bits = 0;
  unsigned bad = 0;
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
    const Reader read{t.data, static_cast<std::uint8_t>(t.dtype)};
    const auto add = [&](float x) {
      const std::uint32_t b = __float_as_uint(x) & 0x7FFFFFFFU;
      max_bits = max(max_bits, b);
      bad += b > static_cast<std::uint32_t>(formula::kLargestSquarable) ? 1U : 0U;
      sum = fma(static_cast<double>(x), static_cast<double>(x), sum);  // the product is exact
    };
    std::int64_t i = begin + k;
    constexpr int kAhead = 16;
    for (; i + (kAhead - 1) * kSums < end; i += kAhead * kSums) {
      float x[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) x[j] = read(i + j * kSums);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) add(x[j]);
    }
    for (; i < end; i += kSums) add(read(i));
  }
  for (int half = kSums / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0U, sum, half, kSums);
  if (k == 0 && chunk < chunks) sums[chunk] = sum;
  max_bits = warp_max(max_bits);
  bad = warp_sum(bad);
  if (threadIdx.x % 32 == 0) {
    if (max_bits != 0) atomicMax(&totals->max_bits, max_bits);
    if (bad != 0) atomicAdd(&totals->nonfinite, static_cast<unsigned long long>(bad));
  }
}

// Neighbours in pairs, level by level, in place: a row of pairs is read before it is overwritten.
__global__ void tree_kernel(double* values, std::int64_t count, const NormTotals* totals, GradNorm* out) {
  for (std::int64_t size = count; size > 1; size = (size + 1) / 2) {
    for (std::int64_t row = 0; row < (size + 1) / 2; row += blockDim.x) {
      const std::int64_t i = row + threadIdx.x;
      double joined = 0.0;
      if (2 * i < size) joined = 2 * i + 1 < size ? values[2 * i] + values[2 * i + 1] : values[2 * i];
      __syncthreads();
      if (2 * i < size) values[i] = joined;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) {
    out->l2 = sqrt(count > 0 ? values[0] : 0.0);
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
  tree_kernel<<<1, 1024, 0, stream>>>(sums, chunks, totals, out);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
