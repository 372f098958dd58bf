// The norm's kernel. Eight lanes process a chunk, two of its sums each, so a warp processes four chunks at a
// time. The lanes of a group copy the chunk to shared memory, sixteen bytes per lane and several stages
// ahead, and each lane adds the elements of its sums from there.
//
// Sums belong to addresses. A row has the bytes of sixteen elements and begins at a multiple of that size. A
// lane reads the same two positions of every row, so the elements of a sum are added in order wherever the
// chunk begins; only at the end, positions become sums. The rows at the ends of the chunk, which it shares
// with other chunks, are loaded element by element.
//
// Warps process tasks of a few chunks until none are left: complete chunks first, then the tensors' last
// chunks from long to short. The warp that finishes a node of kTreeGroup chunks adds it, and the warp that
// finishes the last node adds the nodes. No block waits for another.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/norm/fixed_order_reduce.cuh"
#include "cuda/norm/norm.h"
#include "cuda/runtime/arch.h"
#include "cuda/runtime/element_io.cuh"
#include "formula/norm.h"

namespace octavo::cuda {

// The sizes of the stages that are fetched ahead.
template <int kStageBytes, int kStageCount, int kWarpCount>
struct NormShape {
  static constexpr int kStage = kStageBytes;  // bytes per chunk
  static constexpr int kStages = kStageCount;
  static constexpr int kWarps = kWarpCount;  // warps per block
  static constexpr int kThreads = 32 * kWarps;
  // The shared memory of a chunk. The last bytes keep the banks of the warp's chunks apart.
  static constexpr int kRing = kStage * kStages + 32;
};

inline constexpr int kNormLanes = 8;  // lanes per chunk
inline constexpr int kNormTogether = 32 / kNormLanes;
static_assert(kNormTogether == kNormMostPerTask);
inline constexpr int kNormSums = formula::kNormSums;
static_assert(kNormSums == 2 * kNormLanes);

// Starts a copy of sixteen bytes to shared memory, or writes zeros.
__device__ inline void norm_copy(std::uint32_t to, const void* from, bool whole) {
  if constexpr (has_async_copies(kArch)) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(whole ? 16 : 0)
                 : "memory");
  } else {
    const uint4 x = whole ? load<uint4>(from, 0) : uint4{};
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
  }
}
__device__ inline void norm_copies_end() {
  if constexpr (has_async_copies(kArch)) asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all groups of copies but the last kLeft have arrived.
template <int kLeft>
__device__ inline void norm_copies_wait() {
  if constexpr (has_async_copies(kArch)) asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Returns the maxima of the halves of two words.
__device__ inline std::uint32_t max_of_halves(std::uint32_t a, std::uint32_t b) {
  if constexpr (has_half_maxima(kArch)) {
    return __vmaxu2(a, b);
  } else {
    return max(a & 0xFFFF0000U, b & 0xFFFF0000U) | max(a & 0xFFFFU, b & 0xFFFFU);
  }
}

// Two neighbours of a row: their form in memory and their conversion. kMax compares magnitudes in the
// memory's bits, so that most of the work is done for both at once.
template <DType kDtype>
struct NormPair {
  using Word = std::uint32_t;
  static constexpr int kBytes = 4;
  static constexpr std::uint32_t kSquarable =
      kDtype == DType::bf16 ? static_cast<std::uint32_t>(formula::kLargestSquarable) >> 16 : 0x7BFFU;

  static __device__ Word magnitudes(Word w) { return w & 0x7FFF7FFFU; }
  static __device__ Word larger(Word a, Word b) { return max_of_halves(a, b); }
  static __device__ void values(Word m, double (&out)[2]) {
    if constexpr (kDtype == DType::bf16) {
      out[0] = __hiloint2double(static_cast<int>((m & 0x7FFFU) << 13), 0) * 0x1p896;
      out[1] = __hiloint2double(static_cast<int>((m & 0x7FFF0000U) >> 3), 0) * 0x1p896;
    } else {
      out[0] = __hiloint2double(static_cast<int>((m & 0x7FFFU) << 10), 0) * 0x1p1008;
      out[1] = __hiloint2double(static_cast<int>((m & 0x7FFF0000U) >> 6), 0) * 0x1p1008;
    }
  }
  static __device__ void floats(Word m, float* out) {
    if constexpr (kDtype == DType::bf16) {
      unpack_bf16(m, out);
    } else {
      unpack_f16(m, out);
    }
  }
  static __device__ unsigned bad(Word m) {
    return ((m & 0xFFFFU) > kSquarable ? 1U : 0U) + (m >> 16 > kSquarable ? 1U : 0U);
  }
  static __device__ std::uint32_t float_bits(Word m) {
    float x[2];
    floats(m, x);
    return max(__float_as_uint(x[0]), __float_as_uint(x[1]));
  }
};
template <>
struct NormPair<DType::f32> {
  using Word = uint2;
  static constexpr int kBytes = 8;
  static constexpr std::uint32_t kSquarable = formula::kLargestSquarable;

  static __device__ Word magnitudes(Word w) { return {w.x & 0x7FFFFFFFU, w.y & 0x7FFFFFFFU}; }
  static __device__ Word larger(Word a, Word b) { return {max(a.x, b.x), max(a.y, b.y)}; }
  static __device__ void values(Word m, double (&out)[2]) {
    out[0] = __hiloint2double(static_cast<int>(m.x >> 3), static_cast<int>(m.x << 29)) * 0x1p896;
    out[1] = __hiloint2double(static_cast<int>(m.y >> 3), static_cast<int>(m.y << 29)) * 0x1p896;
  }
  static __device__ void floats(Word m, float* out) {
    out[0] = __uint_as_float(m.x);
    out[1] = __uint_as_float(m.y);
  }
  static __device__ unsigned bad(Word m) {
    return (m.x > kSquarable ? 1U : 0U) + (m.y > kSquarable ? 1U : 0U);
  }
  static __device__ std::uint32_t float_bits(Word m) { return max(m.x, m.y); }
};

// A lane's part of a chunk.
struct NormLane {
  double sums[2] = {};
  std::uint32_t max_bits = 0;  // the bits of a float
  unsigned bad = 0;

  __device__ void add_one(int k, float x) {
    const std::uint32_t b = __float_as_uint(x) & 0x7FFFFFFFU;
    max_bits = max(max_bits, b);
    bad += b > static_cast<std::uint32_t>(formula::kLargestSquarable) ? 1U : 0U;
    sums[k] = fma(static_cast<double>(x), static_cast<double>(x), sums[k]);  // the product is exact
  }

  // Adds the rows of a stage. Elements past the chunk's end are zero, which changes nothing. Non-finite
  // elements are rare, so they are counted only if the largest magnitude is not finite.
  template <DType kDtype, int kStage>
  __device__ void add_stage(const char* stage) {
    using Pair = NormPair<kDtype>;
    constexpr int kRow = Pair::kBytes * kNormLanes;
    const auto at = [&](int row) {
      return *reinterpret_cast<const typename Pair::Word*>(stage + row * kRow);
    };
    typename Pair::Word most{};
#pragma unroll
    for (int row = 0; row < kStage / kRow; ++row) {
      const typename Pair::Word m = Pair::magnitudes(at(row));
      most = Pair::larger(most, m);
      double x[2];
      Pair::values(m, x);
      sums[0] = fma(x[0], x[0], sums[0]);
      sums[1] = fma(x[1], x[1], sums[1]);
    }
    max_bits = max(max_bits, Pair::float_bits(most));
    if (Pair::bad(most) != 0) {
#pragma unroll 1
      for (int row = 0; row < kStage / kRow; ++row) {
        const typename Pair::Word m = Pair::magnitudes(at(row));
        bad += Pair::bad(m);
        float x[2];
        Pair::floats(m, x);
        if (!(x[0] < __uint_as_float(0x7F800000U))) sums[0] += x[0];
        if (!(x[1] < __uint_as_float(0x7F800000U))) sums[1] += x[1];
      }
    }
  }
};

// A chunk from the view of its group's lanes.
struct NormChunk {
  const char* body = nullptr;  // the rows that only this chunk uses
  std::int32_t bytes = 0;      // their size in bytes
  std::uint32_t dtype = 0;
  std::uint32_t sum_at = 0;  // index among the sums
  int phase = 0;             // the position of the first element in its row
  bool here = false;
  float head[2] = {}, tail[2] = {};  // this lane's elements of the rows that are shared with other chunks

  __device__ void find(const NormWork& work, std::uint32_t task, int group) {
    const std::uint32_t full_tasks = (work.full_chunks + work.per_task - 1) / work.per_task;
    const bool full = task < full_tasks;
    const std::uint32_t at = (full ? task : task - full_tasks) * work.per_task + group;
    here = static_cast<std::uint32_t>(group) < work.per_task && at < (full ? work.full_chunks : work.tails);
    if (!here) return;
    std::uint32_t low = full ? 0 : at;
    std::uint32_t high = full ? work.tensors : at + 1;  // the tensor is in [low, high)
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (work.entries[middle].first_full <= at ? low : high) = middle;
    }
    const NormEntry entry = work.entries[low];
    const std::int64_t index = full ? at - entry.first_full : entry.numel / formula::kNormChunk;
    const std::int64_t begin = index * formula::kNormChunk;
    sum_at = entry.first_chunk + static_cast<std::uint32_t>(index);
    dtype = entry.dtype;
    const auto count = static_cast<std::int32_t>(full ? formula::kNormChunk : entry.numel - begin);
    if (is_f32(static_cast<std::uint8_t>(dtype))) {
      place<DType::f32>(static_cast<const float*>(entry.data) + begin, count);
    } else if (is_bf16(static_cast<std::uint8_t>(dtype))) {
      place<DType::bf16>(static_cast<const std::uint16_t*>(entry.data) + begin, count);
    } else {
      place<DType::f16>(static_cast<const std::uint16_t*>(entry.data) + begin, count);
    }
  }

 private:
  template <DType kDtype, class T>
  __device__ void place(const T* data, std::int32_t count) {
    constexpr int kRow = sizeof(T) * kNormSums;
    phase = static_cast<int>(reinterpret_cast<std::uintptr_t>(data) % kRow / sizeof(T));
    const std::int32_t first = phase > 0 ? 1 : 0;
    const std::int32_t last = (phase + count) / kNormSums;  // the rows before it end inside the chunk
    const T* const row = data - phase;
    body = reinterpret_cast<const char*>(row + first * kNormSums);
    bytes = max(last - first, 0) * kRow;
    const int own = static_cast<int>(threadIdx.x % kNormLanes) * 2;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::int32_t in_head = own + k - phase;
      if (first > 0 && in_head >= 0 && in_head < count)
        head[k] = load_one(data, static_cast<std::uint8_t>(kDtype), in_head);
      const std::int32_t in_tail = last * kNormSums + own + k - phase;
      if (last >= first && in_tail < count)
        tail[k] = load_one(data, static_cast<std::uint8_t>(kDtype), in_tail);
    }
  }
};

// Computes the norm from the sums of all nodes, by one warp, and resets the totals for the next launch.
__device__ inline void norm_finish(const NormWork& work) {
  const double sum = sum_by_warp(work.nodes, norm_nodes(work.chunks));
  if ((threadIdx.x & 31U) != 0) return;
  NormTotals& totals = *work.totals;
  work.out->l2 = sqrt(sum);
  const std::uint32_t max_bits = __ldcg(&totals.max_bits);
  work.out->max = static_cast<double>(formula::canonical(scalar::F32(__uint_as_float(max_bits))).v);
  work.out->nonfinite = static_cast<std::int64_t>(__ldcg(&totals.nonfinite));
  totals = {};
}

// Adds the nodes that are complete, by one warp. Each lane that is `here` has written the sum of one chunk.
__device__ inline void norm_done(const NormWork& work, bool here, std::uint32_t chunk) {
  const std::uint32_t node = chunk / kTreeGroup;
  const auto size = [&](std::uint32_t of) {
    return min(work.chunks - of * kTreeGroup, unsigned{kTreeGroup});
  };
  bool last = false;
  if (here) {
    __threadfence();
    last = atomicAdd(work.done + node, 1U) + 1 == size(node);
  }
  for (unsigned mask = __ballot_sync(~0U, last); mask != 0; mask &= mask - 1) {
    const std::uint32_t complete = __shfl_sync(~0U, node, __ffs(static_cast<int>(mask)) - 1);
    __threadfence();
    const double sum = group_tree(work.sums + std::int64_t{kTreeGroup} * complete, size(complete));
    unsigned nodes = 0;
    if ((threadIdx.x & 31U) == 0) {
      work.nodes[complete] = sum;
      work.done[complete] = 0;
      __threadfence();
      nodes = atomicAdd(&work.totals->nodes, 1U) + 1;
    }
    if (__shfl_sync(~0U, nodes, 0) == norm_nodes(work.chunks)) {
      __threadfence();
      norm_finish(work);
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads) norm_kernel(const __grid_constant__ NormWork work) {
  __shared__ __align__(128) char shared[Shape::kWarps][kNormTogether][Shape::kRing];
  constexpr int kStage = Shape::kStage;
  constexpr int kStages = Shape::kStages;
  static_assert(kStages >= 2 && kStage % (16 * kNormLanes) == 0 && kStage % 64 == 0);
  const unsigned warp = threadIdx.x / 32;
  const auto group = static_cast<int>(threadIdx.x % 32 / kNormLanes);
  const auto lane = static_cast<int>(threadIdx.x % kNormLanes);
  char* const ring = shared[warp][group];
  const auto copies = static_cast<std::uint32_t>(__cvta_generic_to_shared(ring)) + lane * 16;
  const std::uint32_t tasks = norm_tasks(work);
  // Neighbouring tasks begin on different multiprocessors.
  std::uint32_t task = warp * gridDim.x + blockIdx.x;
  if (work.chunks == 0 && task == 0) norm_finish(work);

  while (task < tasks) {
    std::uint32_t next = 0;
    if ((threadIdx.x & 31U) == 0) next = atomicAdd(&work.totals->next, 1U) + gridDim.x * Shape::kWarps;
    NormChunk chunk;
    chunk.find(work, task, group);

    const auto stages = static_cast<std::int32_t>(warp_max((chunk.bytes + kStage - 1) / kStage));
    const auto fetch = [&](std::int32_t stage, int slot) {
      const std::uint32_t to = copies + slot * kStage;
      const std::int32_t at = stage * kStage;
      const char* const from = chunk.body + at + lane * 16;
      const std::int32_t left = chunk.bytes - at;
      if (left >= kStage) {
#pragma unroll
        for (int i = 0; i < kStage; i += 16 * kNormLanes) norm_copy(to + i, from + i, true);
      } else if (left > 0) {
#pragma unroll
        for (int i = 0; i < kStage; i += 16 * kNormLanes) norm_copy(to + i, from + i, lane * 16 + i < left);
      }
      norm_copies_end();
    };
#pragma unroll 1
    for (int s = 0; s < kStages - 1; ++s) fetch(s, s);

    NormLane own;
    own.add_one(0, chunk.head[0]);
    own.add_one(1, chunk.head[1]);
    int slot = 0;
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      norm_copies_wait<kStages - 2>();
      __syncwarp();  // all lanes' copies have arrived, and the slot has been read
      fetch(stage + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
      const char* const at = ring + slot * kStage;
      if (stage * kStage >= chunk.bytes) {
        // This chunk is shorter than others of the warp.
      } else if (is_bf16(static_cast<std::uint8_t>(chunk.dtype))) {
        own.add_stage<DType::bf16, kStage>(at + lane * 4);
      } else if (is_f32(static_cast<std::uint8_t>(chunk.dtype))) {
        own.add_stage<DType::f32, kStage>(at + lane * 8);
      } else {
        own.add_stage<DType::f16, kStage>(at + lane * 4);
      }
      slot = slot == kStages - 1 ? 0 : slot + 1;
    }
    own.add_one(0, chunk.tail[0]);
    own.add_one(1, chunk.tail[1]);

    // Converts positions to sums, which are joined by halves.
    auto* const places = reinterpret_cast<double*>(ring);
    __syncwarp();
    places[2 * lane] = own.sums[0];
    places[2 * lane + 1] = own.sums[1];
    __syncwarp();
    double sum = places[(lane + chunk.phase) % kNormSums];
    sum += places[(lane + kNormLanes + chunk.phase) % kNormSums];
    for (int half = kNormLanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0U, sum, half, kNormLanes);
    __syncwarp();  // the next chunks overwrite the ring

    const unsigned max_bits = warp_max(own.max_bits);
    const unsigned bad = warp_sum(own.bad);
    if ((threadIdx.x & 31U) == 0) {
      if (max_bits != 0) atomicMax(&work.totals->max_bits, max_bits);
      if (bad != 0) atomicAdd(&work.totals->nonfinite, static_cast<unsigned long long>(bad));
    }
    const bool leads = chunk.here && lane == 0;
    if (leads) work.sums[chunk.sum_at] = sum;
    task = __shfl_sync(~0U, next, 0);
    __syncwarp();
    norm_done(work, leads, chunk.sum_at);
  }
}

}  // namespace octavo::cuda
