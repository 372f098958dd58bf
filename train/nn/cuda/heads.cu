// Transposes activations between [batch, frames, heads, size] and the layouts that batched matmuls read, and
// computes the gradients of the biases, which are sums. A thread processes eight neighbouring channels. A
// block processes one frame, or a run of frames if it computes sums.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/attention.h"
#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/sums.cuh"
#include "train/nn/cuda/vectors.cuh"

namespace octavo_train::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = kMergedFrames;

// The position of a thread's channels. Counts are 32-bit numbers, because divisions of 64-bit numbers are
// slow.
struct Spot {
  int batch, frames, heads, size, keys;
  int channel, head, within;

  explicit __device__ Spot(const AttentionShape& shape)
      : batch(static_cast<int>(shape.batch)),
        frames(static_cast<int>(shape.frames)),
        heads(static_cast<int>(shape.heads)),
        size(static_cast<int>(shape.size)),
        keys(static_cast<int>(shape.keys())),
        channel(static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * 8),
        head(channel / size),
        within(channel - head * size) {}
  [[nodiscard]] __device__ bool outside() const { return head >= heads; }
  // Returns an index into [batch, heads, rows, size].
  [[nodiscard]] __device__ std::int64_t clip_first(int clip, int rows, int row) const {
    return ((std::int64_t{clip} * heads + head) * rows + row) * size + within;
  }
  // Returns an index into [heads, rows, size].
  [[nodiscard]] __device__ std::int64_t head_first(int rows, int row) const {
    return (std::int64_t{head} * rows + row) * size + within;
  }
};

template <class T>
__device__ inline void copy8(const T* from, T* to) {
  *reinterpret_cast<Raw<T, 8>*>(to) = load<T, 8>(from);
}
template <class T>
__device__ inline void zero8(T* to) {
  *reinterpret_cast<Raw<T, 8>*>(to) = Raw<T, 8>{};
}
template <class T>
__device__ inline void store_sum(const float* x, const float* bias, T* to) {
  float added[8], sum[8];
  widen(load<float, 8>(bias), added);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = x[i] + added[i];
  store<8>(to, sum);
}

// Uses one block for each frame of keys, including the padding, and then one for each position.
template <class T>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const __grid_constant__ AttentionShape shape, const __grid_constant__ SplitWork work) {
  const Spot spot(shape);
  if (spot.outside()) return;
  const auto at = [](void* base, std::int64_t index) { return static_cast<T*>(base) + index; };
  const int block = static_cast<int>(blockIdx.x), position = block - spot.batch * spot.keys;
  if (position >= 0) {
    T* to = at(work.out.positions, spot.head_first(static_cast<int>(shape.distances()), position));
    if (position < 2 * spot.frames - 1)
      copy8(static_cast<const T*>(work.positions) + position * shape.channels() + spot.channel, to);
    else
      zero8(to);
    return;
  }
  const int clip = block / spot.keys, frame = block - clip * spot.keys;
  T* key = at(work.out.keys, spot.clip_first(clip, spot.keys, frame));
  T* value = at(work.out.values, spot.clip_first(clip, spot.keys, frame));
  if (frame >= spot.frames) {
    zero8(key);
    zero8(value);
    return;
  }
  const int row = clip * spot.frames + frame;
  const Raw<T, 8> raw = load<T, 8>(static_cast<const T*>(work.q) + row * work.q_row + spot.channel);
  copy8(static_cast<const T*>(work.k) + row * work.k_row + spot.channel, key);
  copy8(static_cast<const T*>(work.v) + row * work.v_row + spot.channel, value);
  float query[8];
  widen(raw, query);
  store_sum(query, work.bias_u + spot.channel,
            at(work.out.content, spot.clip_first(clip, spot.frames, frame)));
  store_sum(query, work.bias_v + spot.channel,
            at(work.out.place, spot.head_first(spot.batch * spot.frames, row)));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    turn_kernel(const __grid_constant__ AttentionShape shape, const T* from, T* to, bool first) {
  const Spot spot(shape);
  if (spot.outside()) return;
  const int row = static_cast<int>(blockIdx.x), clip = row / spot.frames;
  const std::int64_t apart = spot.clip_first(clip, spot.frames, row - clip * spot.frames);
  const std::int64_t together = row * shape.channels() + spot.channel;
  copy8(from + (first ? together : apart), to + (first ? apart : together));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ AttentionShape shape, const __grid_constant__ MergeWork work) {
  const Spot spot(shape);
  if (spot.outside()) return;
  const int rows = spot.batch * spot.frames, begin = static_cast<int>(blockIdx.x) * kRun;
  const auto in = [](const void* base, std::int64_t index) {
    return load<T, 8>(static_cast<const T*>(base) + index);
  };
  const auto put = [](void* base, std::int64_t index, const Raw<T, 8>& raw) {
    *reinterpret_cast<Raw<T, 8>*>(static_cast<T*>(base) + index) = raw;
  };
  float sum_u[8] = {}, sum_v[8] = {};
#pragma unroll 2
  for (int row = begin; row < min(rows, begin + kRun); ++row) {
    const int clip = row / spot.frames, frame = row - clip * spot.frames;
    const std::int64_t padded = spot.clip_first(clip, spot.keys, frame);
    const std::int64_t to = row * shape.channels() + spot.channel;
    const Raw<T, 8> content = in(work.content, spot.clip_first(clip, spot.frames, frame));
    const Raw<T, 8> place = in(work.place, spot.head_first(rows, row));
    put(work.dk, to, in(work.keys, padded));
    put(work.dv, to, in(work.values, padded));
    float u[8], v[8];
    widen(content, u);
    widen(place, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum_u[i] += u[i];
      sum_v[i] += v[i];
      u[i] += v[i];
    }
    store<8>(static_cast<T*>(work.dq) + to, u);
  }
  float* partial = work.partial + std::int64_t{blockIdx.x} * 2 * shape.channels() + spot.channel;
  store<8>(partial, sum_u);
  store<8>(partial + shape.channels(), sum_v);
}

dim3 grid_of(const AttentionShape& shape, std::int64_t rows) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(shape.channels(), 8 * kThreads))};
}

const char* turn(const AttentionShape& shape, const void* from, void* to, bool first, void* stream) {
  const dim3 grid = grid_of(shape, shape.batch * shape.frames);
  const auto queue = static_cast<cudaStream_t>(stream);
  if (shape.bf16)
    turn_kernel<<<grid, kThreads, 0, queue>>>(shape, static_cast<const Bf16*>(from), static_cast<Bf16*>(to),
                                              first);
  else
    turn_kernel<<<grid, kThreads, 0, queue>>>(shape, static_cast<const float*>(from), static_cast<float*>(to),
                                              first);
  return launched();
}

}  // namespace

const char* split_heads(const AttentionShape& shape, const SplitWork& work, void* stream) {
  const dim3 grid = grid_of(shape, shape.batch * shape.keys() + shape.distances());
  const auto queue = static_cast<cudaStream_t>(stream);
  if (shape.bf16)
    split_kernel<Bf16><<<grid, kThreads, 0, queue>>>(shape, work);
  else
    split_kernel<float><<<grid, kThreads, 0, queue>>>(shape, work);
  return launched();
}

const char* heads_first(const AttentionShape& shape, const void* from, void* to, void* stream) {
  return turn(shape, from, to, true, stream);
}
const char* heads_last(const AttentionShape& shape, const void* from, void* to, void* stream) {
  return turn(shape, from, to, false, stream);
}

const char* merge_heads(const AttentionShape& shape, const MergeWork& work, void* stream) {
  const dim3 grid = grid_of(shape, merge_runs(shape));
  const auto queue = static_cast<cudaStream_t>(stream);
  if (shape.bf16)
    merge_kernel<Bf16><<<grid, kThreads, 0, queue>>>(shape, work);
  else
    merge_kernel<float><<<grid, kThreads, 0, queue>>>(shape, work);
  column_sums(work.partial, merge_runs(shape), 2 * shape.channels(), work.dbias, nullptr, 1.0, queue);
  return launched();
}

}  // namespace octavo_train::cuda
