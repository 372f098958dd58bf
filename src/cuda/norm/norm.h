// The norm's kernel as the host sees it.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "lane/scalar.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// One gradient of a norm. Those with elements behind their whole chunks come first, by type and from long
// ends to short, so that a warp's chunks are alike.
struct NormEntry {
  const void* data;
  std::int64_t numel;
  std::uint32_t first_chunk;  // among the sums, which are in the caller's order
  std::uint32_t first_full;   // whole chunks of the entries before it
  std::uint32_t dtype;
  std::uint32_t unused;
};
// Zero before the first launch, and again when a launch ends.
struct NormTotals {
  unsigned long long nonfinite;
  std::uint32_t max_bits;
  std::uint32_t next;   // tasks taken, besides the first of each warp
  std::uint32_t nodes;  // that are complete
  std::uint32_t unused;
};
inline constexpr std::uint32_t kNormMostPerTask = 4;
struct NormWork {
  const NormEntry* entries;
  std::uint32_t tensors, tails, full_chunks, chunks;
  std::uint32_t per_task;  // chunks that a warp takes at a time
  double* sums;            // of chunks
  double* nodes;           // of the sums, norm_nodes of them
  std::uint32_t* done;     // chunks of each node; zero, as the totals
  NormTotals* totals;
  GradNorm* out;
};
// Nodes of the tree of chunks (kTreeGroup in cuda/norm/fixed_order_reduce.cuh), and tasks.
OCTAVO_HD inline std::uint32_t norm_nodes(std::uint32_t chunks) {
  return static_cast<std::uint32_t>((std::uint64_t{chunks} + 1023) / 1024);
}
OCTAVO_HD inline std::uint32_t norm_tasks(const NormWork& work) {
  return (work.full_chunks + work.per_task - 1) / work.per_task +
         (work.tails + work.per_task - 1) / work.per_task;
}
// Warps of the norm's kernel that a multiprocessor of the current device runs at a time.
cudaError_t norm_warps(int* out);
// Every field but per_task, which it chooses.
cudaError_t norm(NormWork work, int multiprocessors, int warps, cudaStream_t stream);

}  // namespace octavo::cuda
