// Launches the kernel of the gradient norm on a GPU. The sums are those of the CPU (formula/norm.h).
// SPDX-License-Identifier: MIT
#include "cuda/norm/norm.h"

#include "cuda/norm/norm_kernel.cuh"

#include <algorithm>
#include <map>
#include <mutex>

namespace octavo::cuda {
namespace {

using Shape = NormShape<2048, 5, 1>;
static_assert(Shape::kWarps == 1);
constexpr auto* kKernel = &norm_kernel<Shape>;

// The sums of a chunk are dependent chains, so a round of tasks takes a fixed time for up to three warps of a
// multiprocessor. With more warps, the memory's bandwidth is the limit.
constexpr std::uint64_t kAlone = 3;

// Returns the number of warps of each multiprocessor, up to `most`, that finish the tasks soonest.
std::uint32_t norm_crew(std::uint64_t tasks, std::uint32_t multiprocessors, std::uint32_t most) {
  std::uint32_t best = most;
  std::uint64_t least = ~std::uint64_t{0};
  for (std::uint32_t crew = 1; crew <= most; ++crew) {
    const std::uint64_t warps = std::uint64_t{crew} * multiprocessors;
    const std::uint64_t time = (tasks + warps - 1) / warps * std::max<std::uint64_t>(crew, kAlone);
    if (time >= least) continue;
    least = time;
    best = crew;
  }
  return best;
}

}  // namespace

cudaError_t norm_warps(int* out) {
  // The device is queried once, because some callers make a new norm at every step.
  static std::mutex mutex;
  static std::map<int, int> known;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) {
    *out = found->second;
    return error;
  }
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  int blocks = 0;
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kKernel, Shape::kThreads, 0);
  *out = std::max(blocks, 1);
  if (error == cudaSuccess) known.emplace(device, *out);
  return error;
}

cudaError_t norm(NormWork work, int multiprocessors, int warps, cudaStream_t stream) {
  // A warp gets the largest number of chunks that leaves no multiprocessor without work.
  const auto all = static_cast<std::uint32_t>(multiprocessors);
  work.per_task = std::clamp((work.chunks + 3 * all - 1) / (3 * all), 1U, kNormMostPerTask);
  const std::uint32_t full = (work.full_chunks + work.per_task - 1) / work.per_task;
  const std::uint32_t crew = norm_crew(full, all, static_cast<std::uint32_t>(warps));
  const std::uint32_t grid = std::clamp(norm_tasks(work), 1U, crew * all);
  norm_kernel<Shape><<<grid, Shape::kThreads, 0, stream>>>(work);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
