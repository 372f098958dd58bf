// Between the two passes of a rule that measures: the sums of all tiles become those of each tensor, and
// these its ratio. A tensor's tiles begin at a multiple of kTilesOfNode; those that it does not have are
// zero.
// SPDX-License-Identifier: MIT
#include "cuda/kernels.h"
#include "cuda/measure.cuh"

namespace octavo::cuda {
namespace {

using formula::Sums;

constexpr int kNodeThreads = 256;
constexpr int kTreeThreads = 1024;

// The sum of a warp's values, in their order.
__device__ Sums warp_tree(Sums mine) {
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    mine.weight += __shfl_xor_sync(~0U, mine.weight, o);
    mine.update += __shfl_xor_sync(~0U, mine.update, o);
  }
  return mine;
}

__device__ bool skipped(const Prepared* prepared) { return prepared != nullptr && prepared->skip != 0; }

__global__ void node_kernel(const Prepared* prepared, const Sums* tiles, std::int64_t nodes, Sums* out) {
  static_assert(kTilesOfNode == 32);
  const std::int64_t node = static_cast<std::int64_t>(blockIdx.x) * (kNodeThreads / 32) + threadIdx.x / 32;
  if (skipped(prepared) || node >= nodes) return;
  const Sums sums = warp_tree(tiles[node * kTilesOfNode + (threadIdx.x & 31U)]);
  if ((threadIdx.x & 31U) == 0) out[node] = sums;
}

// A block a tensor: kTreeThreads nodes become one, in place, until one is left.
__global__ void tensor_kernel(const Prepared* prepared, const TensorEntry* entries, Sums* nodes, Sums* out) {
  if (skipped(prepared)) return;
  __shared__ Sums warps[kTreeThreads / 32];
  const TensorEntry& t = entries[blockIdx.x];
  Sums* own = nodes + t.first_tile / kTilesOfNode;
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t lane = threadIdx.x & 31U;
  std::int64_t size = nodes_of(t.numel);
  do {
    const std::int64_t groups = (size + kTreeThreads - 1) / kTreeThreads;
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t i = group * kTreeThreads + threadIdx.x;
      const Sums sums = warp_tree(i < size ? own[i] : Sums{});
      if (lane == 0) warps[warp] = sums;
      __syncthreads();  // all of the group has been read
      if (warp == 0) {
        const Sums all = warp_tree(warps[lane]);
        if (lane == 0) own[group] = all;
      }
      __syncthreads();
    }
    size = groups;
  } while (size > 1);
  if (threadIdx.x == 0) out[t.tensor] = own[0];
}

template <class Rule>
__global__ void ratio_kernel(const Prepared* prepared, const __grid_constant__ Prepared constants,
                             const Sums* sums, TensorEntry* entries, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (skipped(prepared) || i >= count) return;
  const Prepared& now = prepared != nullptr ? *prepared : constants;
  entries[i].ratio =
      Rule::ratio(*reinterpret_cast<const typename Rule::Consts*>(now.consts), sums[entries[i].tensor]);
}

unsigned blocks_for(std::int64_t count, int threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

}  // namespace

cudaError_t add_tiles(const Prepared* prepared, const Sums* tiles, std::int64_t nodes, Sums* out,
                      cudaStream_t stream) {
  node_kernel<<<blocks_for(nodes, kNodeThreads / 32), kNodeThreads, 0, stream>>>(prepared, tiles, nodes, out);
  return cudaGetLastError();
}

cudaError_t add_nodes(const Prepared* prepared, const TensorEntry* entries, std::int64_t count, Sums* nodes,
                      Sums* out, cudaStream_t stream) {
  tensor_kernel<<<static_cast<unsigned>(count), kTreeThreads, 0, stream>>>(prepared, entries, nodes, out);
  return cudaGetLastError();
}

cudaError_t set_ratios(std::size_t algorithm, const StepParams& params, const Sums* sums,
                       TensorEntry* entries, std::int64_t count, cudaStream_t stream) {
  return at_index(Algorithms{}, algorithm, [&](auto rule) {
    using Rule = decltype(rule);
    if constexpr (formula::kMeasures<Rule>) {
      constexpr int kThreads = 128;
      ratio_kernel<Rule><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
          params.prepared, params.constants, sums, entries, count);
    }
    return cudaGetLastError();
  });
}

}  // namespace octavo::cuda
