// The small kernels around the passes of a step with rank-1 scales. They fold the maxima of axes to those of
// rows and columns.
// SPDX-License-Identifier: MIT
#include "cuda/rank1/scales.cuh"
#include "cuda/step/kernels.h"

namespace octavo::cuda {
namespace {

// The threads of a tensor, over all of its blocks.
constexpr int kBlocks = 4, kThreads = 512;
template <class Fn>
__device__ void for_each(std::int64_t count, Fn&& f) {
  for (std::int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.y) * blockDim.x)
    f(i);
}

// Returns the smallest maximum among a row's slices, or a column's, as bits.
__device__ std::uint32_t smallest(const TensorEntry& t, bool row, std::int64_t index, const float* maxima) {
  std::uint32_t bits = 0x7FFFFFFFU;
  for_slices<true>(t, row, index, [&](std::int64_t slice) { bits = min(bits, magnitude(maxima[slice])); });
  return bits;
}

__device__ float inverse(std::uint32_t bits) {
  return formula::rank1_inverse(scalar::F32(formula::rank1_scale(bits))).v;
}

__global__ void open_kernel(const TensorEntry* entries, const __grid_constant__ Rank1Slots slots) {
  const TensorEntry& t = entries[blockIdx.x];
  const Rank1View& v = t.rank1;
  for (int m = 0; m < slots.count; ++m) {
    const float* const scales = t.scales[slots.slot[m]];
    for_each(v.rows,
             [&](std::int64_t i) { old_rows(v, m)[i] = formula::rank1_scale(smallest(t, true, i, scales)); });
    for_each(v.columns, [&](std::int64_t i) {
      old_columns(v, m)[i] = formula::rank1_scale(smallest(t, false, i, scales));
    });
    for_each(maxima_of(t), [&](std::int64_t i) { new_maxima(t, m)[i] = 0.0F; });
  }
}

__global__ void close_kernel(const Prepared* prepared, const TensorEntry* entries,
                             const __grid_constant__ Rank1Slots slots) {
  if (prepared != nullptr && prepared->skip != 0) return;
  const TensorEntry& t = entries[blockIdx.x];
  const Rank1View& v = t.rank1;
  for (int m = 0; m < slots.count; ++m) {
    const float* const maxima = new_maxima(t, m);
    for_each(v.rows, [&](std::int64_t i) { new_rows(v, m)[i] = inverse(smallest(t, true, i, maxima)); });
    for_each(v.columns,
             [&](std::int64_t i) { new_columns(v, m)[i] = inverse(smallest(t, false, i, maxima)); });
    for_each(maxima_of(t), [&](std::int64_t i) {
      t.scales[slots.slot[m]][i] = formula::canonical(scalar::F32(maxima[i])).v;
    });
  }
}

dim3 grid(std::int64_t count) { return {static_cast<unsigned>(count), kBlocks}; }

}  // namespace

cudaError_t open_rank1(const TensorEntry* entries, std::int64_t count, const Rank1Slots& slots,
                       cudaStream_t stream) {
  open_kernel<<<grid(count), kThreads, 0, stream>>>(entries, slots);
  return cudaGetLastError();
}

cudaError_t close_rank1(const Prepared* prepared, const TensorEntry* entries, std::int64_t count,
                        const Rank1Slots& slots, cudaStream_t stream) {
  close_kernel<<<grid(count), kThreads, 0, stream>>>(prepared, entries, slots);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
