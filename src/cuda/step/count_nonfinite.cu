// The guard without a norm: reads the gradients once and counts the elements that a step must not use.
// SPDX-License-Identifier: MIT
#include "cuda/runtime/element_io.cuh"
#include "cuda/step/kernels.h"
#include "formula/norm.h"

#include <algorithm>

namespace octavo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  // blocks per multiprocessor
constexpr int kAhead = 8;   // vectors that a lane requests before it reads the first

// The count of a lane.
struct Counter {
  float factor;
  unsigned bad = 0;

  __device__ void add(float g) {
    // A comparison with NaN is false, too.
    bad += fabsf(g * factor) <= __uint_as_float(formula::kLargestSquarable) ? 0U : 1U;
  }
  __device__ void add(const uint4& words, std::uint8_t dtype) {
    float x[kChunk];
    if (is_f32(dtype)) {
      as_floats(words, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) add(x[i]);
    } else {
      unpack_halves(words, dtype, x);
#pragma unroll
      for (const float one : x) add(one);
    }
  }
  __device__ void add(const void* data, std::uint8_t dtype, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin + (threadIdx.x & 31U); at < end; at += 32) add(load_one(data, dtype, at));
  }

  // Counts the elements of a tensor from `begin` to `end`, by a warp. Both are moved to multiples of 16
  // bytes, unless they are the tensor's ends, so the parts of a tensor still cover it completely.
  __device__ void add(const TensorEntry& t, std::int64_t begin, std::int64_t end) {
    const std::uint8_t dtype = t.grad_dtype;
    const int bytes = is_f32(dtype) ? 4 : 2;
    const int width = 16 / bytes;
    const auto before = static_cast<int>(reinterpret_cast<std::uintptr_t>(t.grad) % 16) / bytes;
    const std::int64_t shift = before == 0 ? 0 : width - before;
    if (end != t.numel) end = min(end + shift, t.numel);
    const std::int64_t first = min(begin + shift, end);
    if (begin == 0) add(t.grad, dtype, 0, first);
    const std::int64_t vectors = (end - first) / width;
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(t.grad) + first * bytes);
    std::int64_t at = threadIdx.x & 31U;
    for (; at + 32 * (kAhead - 1) < vectors; at += 32 * kAhead) {
      uint4 words[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) words[i] = __ldcs(from + at + 32 * i);
#pragma unroll
      for (const uint4& one : words) add(one, dtype);
    }
    for (; at < vectors; at += 32) add(__ldcs(from + at), dtype);
    add(t.grad, dtype, first + vectors * width, end);
  }
};

__global__ void __launch_bounds__(kThreads, kBlocks)
    count_kernel(const __grid_constant__ formula::StepInputs inputs, const TensorEntry* entries,
                 const std::uint32_t* map, std::uint32_t units, unsigned long long* count) {
  Counter counter{static_cast<float>(formula::unscale_of(inputs))};
  // Processes one entry of the map, with all its units, at a time.
  const std::uint32_t stride = gridDim.x * (blockDim.x / 32) * kMapStep;
  for (std::uint32_t unit = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * kMapStep; unit < units;
       unit += stride) {
    const TensorEntry* t = entries + map[unit / kMapStep];
    const std::uint32_t last = min(unit + kMapStep, units);
    for (std::uint32_t at = unit; at < last;) {
      while (t[1].first_unit <= at) ++t;
      const std::int64_t size = max(t->block, kTile);
      const std::uint32_t next = min(last, t[1].first_unit);
      counter.add(*t, (at - t->first_unit) * size, min((next - t->first_unit) * size, t->numel));
      at = next;
    }
  }
  const unsigned bad = warp_sum(counter.bad);
  if ((threadIdx.x & 31U) == 0 && bad != 0) atomicAdd(count, static_cast<unsigned long long>(bad));
}

}  // namespace

cudaError_t count_nonfinite(const formula::StepInputs& inputs, const TensorEntry* entries,
                            const std::uint32_t* map, std::int64_t units, std::int64_t* count,
                            int multiprocessors, cudaStream_t stream) {
  constexpr std::int64_t kUnits = kThreads / 32 * kMapStep;  // units of a block
  const auto grid = std::min<std::int64_t>(kBlocks * multiprocessors, (units + kUnits - 1) / kUnits);
  count_kernel<<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(
      inputs, entries, map, static_cast<std::uint32_t>(units), reinterpret_cast<unsigned long long*>(count));
  return cudaGetLastError();
}

}  // namespace octavo::cuda
