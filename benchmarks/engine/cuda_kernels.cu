// Kernels that fill and copy GPU memory; see cuda_kernels.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/cuda_kernels.h"

#include <algorithm>

namespace octavo::cli {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // 16-byte loads in flight per thread

template <class As>
__global__ void fill_kernel(typename As::Type* data, std::uint64_t stream, int shift, std::int64_t numel,
                            RowMask mask) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < numel;
       i += stride)
    data[i] = mask.holds(i) ? As::of(sample(stream, i, shift)) : typename As::Type{};
}

template <class As>
cudaError_t launch_fill_as(void* data, std::uint64_t stream_of_data, int shift, std::int64_t numel,
                           const RowMask& mask, cudaStream_t stream) {
  constexpr std::int64_t kMaxBlocks = 1 << 16;
  const auto blocks = static_cast<unsigned>(std::min((numel + kThreads - 1) / kThreads, kMaxBlocks));
  if (blocks > 0)
    fill_kernel<As><<<blocks, kThreads, 0, stream>>>(static_cast<typename As::Type*>(data), stream_of_data,
                                                     shift, numel, mask);
  return cudaGetLastError();
}

// Uses streaming loads and stores: no data is read again, so the caches need not keep any.
__global__ void __launch_bounds__(kThreads) copy_kernel(uint4* to, const uint4* from, std::int64_t count) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kVectors) + threadIdx.x;
  uint4 values[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (first + i * kThreads < count) values[i] = __ldcs(from + first + i * kThreads);
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    if (first + i * kThreads < count) __stcs(to + first + i * kThreads, values[i]);
}

}  // namespace

cudaError_t launch_fill(void* data, DType dtype, std::uint64_t stream_of_data, int shift, std::int64_t numel,
                        const RowMask& mask, cudaStream_t stream) {
  switch (dtype) {
    case DType::f32:
      return launch_fill_as<AsF32>(data, stream_of_data, shift, numel, mask, stream);
    case DType::bf16:
      return launch_fill_as<AsBf16>(data, stream_of_data, shift, numel, mask, stream);
    case DType::f16:
      return launch_fill_as<AsF16>(data, stream_of_data, shift, numel, mask, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_copy(std::byte* to, const std::byte* from, std::int64_t bytes, cudaStream_t stream) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(uint4));
  constexpr std::int64_t kPerBlock = kThreads * kVectors;
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  if (blocks > 0)
    copy_kernel<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<uint4*>(to),
                                                 reinterpret_cast<const uint4*>(from), count);
  return cudaGetLastError();
}

}  // namespace octavo::cli
