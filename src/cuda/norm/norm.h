// The host's interface to the norm's kernel.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "lane/scalar.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace octavo::cuda {

// One gradient of a norm. Gradients with elements after their complete chunks come first, by type and from
// long ends to short, so that the chunks of a warp are similar.
struct NormEntry {
  const void* data;
  std::int64_t numel;
  std::uint32_t first_chunk;  // index among the sums, which are in the caller's order
  std::uint32_t first_full;   // the number of complete chunks of the entries before it
  std::uint32_t dtype;
  std::uint32_t unused;
};
// All fields are zero before the first launch and again after each launch.
struct NormTotals {
  unsigned long long nonfinite;
  std::uint32_t max_bits;
  std::uint32_t next;   // tasks that were started, besides the first of each warp
  std::uint32_t nodes;  // nodes that are complete
  std::uint32_t unused;
};
inline constexpr std::uint32_t kNormMostPerTask = 4;
struct NormWork {
  const NormEntry* entries;
  std::uint32_t tensors, tails, full_chunks, chunks;
  std::uint32_t per_task;  // chunks that a warp processes at a time
  double* sums;            // one sum per chunk
  double* nodes;           // the sums of nodes, norm_nodes of them
  std::uint32_t* done;     // finished chunks of each node; zero between launches, like the totals
  NormTotals* totals;
  GradNorm* out;
};
// The number of nodes of the tree of chunks (kTreeGroup in cuda/norm/fixed_order_reduce.cuh), and of tasks.
OCTAVO_HD inline std::uint32_t norm_nodes(std::uint32_t chunks) {
  return static_cast<std::uint32_t>((std::uint64_t{chunks} + 1023) / 1024);
}
OCTAVO_HD inline std::uint32_t norm_tasks(const NormWork& work) {
  return (work.full_chunks + work.per_task - 1) / work.per_task +
         (work.tails + work.per_task - 1) / work.per_task;
}
// Returns the number of warps of the norm's kernel that a multiprocessor of the current device runs at a
// time.
cudaError_t norm_warps(int* out);
// Launches the norm. It chooses `per_task`; the caller sets the other fields.
cudaError_t norm(NormWork work, int multiprocessors, int warps, cudaStream_t stream);

}  // namespace octavo::cuda
