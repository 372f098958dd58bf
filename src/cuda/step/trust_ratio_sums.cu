// Runs between the two passes of a rule with a trust ratio: the sums of all tiles become those of each
// tensor, and these its ratio. A tensor's tiles begin at a multiple of kTilesOfNode; missing tiles are zero.
// SPDX-License-Identifier: MIT
#include "cuda/norm/fixed_order_reduce.cuh"
#include "cuda/step/kernels.h"
#include "cuda/step/trust_ratio_sums.cuh"

namespace octavo::cuda {
namespace {

using formula::Sums;

constexpr int kNodeThreads = 256;

__device__ bool skipped(const Prepared* prepared) { return prepared != nullptr && prepared->skip != 0; }

__global__ void node_kernel(const Prepared* prepared, const Sums* tiles, std::int64_t nodes, Sums* out) {
  static_assert(kTilesOfNode == 32);
  const std::int64_t node = static_cast<std::int64_t>(blockIdx.x) * (kNodeThreads / 32) + threadIdx.x / 32;
  if (skipped(prepared) || node >= nodes) return;
  const Sums sums = warp_tree(tiles[node * kTilesOfNode + (threadIdx.x & 31U)]);
  if ((threadIdx.x & 31U) == 0) out[node] = sums;
}

// Runs one warp per tensor.
__global__ void tensor_kernel(const Prepared* prepared, const TensorEntry* entries, Sums* nodes, Sums* out) {
  if (skipped(prepared)) return;
  const TensorEntry& t = entries[blockIdx.x];
  const Sums sums = sum_by_warp(nodes + t.first_tile / kTilesOfNode, nodes_of(t.numel));
  if (threadIdx.x == 0) out[t.tensor] = sums;
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
  tensor_kernel<<<static_cast<unsigned>(count), 32, 0, stream>>>(prepared, entries, nodes, out);
  return cudaGetLastError();
}

cudaError_t set_ratios(std::size_t algorithm, const StepParams& params, const Sums* sums,
                       TensorEntry* entries, std::int64_t count, cudaStream_t stream) {
  return at_index(Algorithms{}, algorithm, [&](auto rule) {
    using Rule = decltype(rule);
    if constexpr (formula::kHasTrustRatio<Rule>) {
      constexpr int kThreads = 128;
      ratio_kernel<Rule><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(
          params.prepared, params.constants, sums, entries, count);
    }
    return cudaGetLastError();
  });
}

}  // namespace octavo::cuda
