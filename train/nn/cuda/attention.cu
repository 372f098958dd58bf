// Softmax over the sum of scores by key and scores by distance, with masks and dropout, and its gradient. A
// warp processes a row, or a block does if rows are long. A thread keeps units of eight neighbouring keys in
// its registers. A row's window of the scores by distance can begin at any column, so aligned vectors are
// loaded and shifted.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/attention.h"

#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/vectors.cuh"

#include <algorithm>

namespace octavo_train::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRounds = 4;  // rows that a group processes in sequence

struct Work {
  const std::int64_t* lengths;
  Dropping drop;
  int batch, frames, heads, keys, distances;
  float scale;
};

// Collective operations of the lanes that process a row.
template <int kLanes>
struct Group;
template <>
struct Group<32> {
  static __device__ float sum(float x) { return warp_sum(x); }
  static __device__ float max(float x) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, o));
    return x;
  }
  static __device__ void sync() { __syncwarp(); }
};
template <>
struct Group<kThreads> {
  template <class Join>
  static __device__ float joined(float x, Join join) {
    __shared__ float parts[kWarps];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float out = parts[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) out = join(out, parts[i]);
    __syncthreads();
    return out;
  }
  static __device__ float sum(float x) {
    return joined(warp_sum(x), [](float a, float b) { return a + b; });
  }
  static __device__ float max(float x) {
    return joined(Group<32>::max(x), [](float a, float b) { return fmaxf(a, b); });
  }
  static __device__ void sync() { __syncthreads(); }
};

template <int kBy, int kCount>
__device__ inline void shift_words(std::uint32_t (&words)[kCount]) {
#pragma unroll
  for (int i = 0; i + kBy < kCount; ++i) words[i] = words[i + kBy];
}

// Returns elements [at, at + 8) of a row that begins at a multiple of 16 bytes and has `count` elements, a
// multiple of eight. Elements after the row are zeros. REQUIRES: at >= 0.
template <class T>
__device__ inline Raw<T, 8> window(const T* row, int at, int count) {
  constexpr int kOf = 16 / sizeof(T), kVectors = 8 / kOf + 1;
  std::uint32_t words[4 * kVectors];
  const int base = at / kOf * kOf;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (base + i * kOf < count) vector = *reinterpret_cast<const uint4*>(row + base + i * kOf);
    words[4 * i] = vector.x;
    words[4 * i + 1] = vector.y;
    words[4 * i + 2] = vector.z;
    words[4 * i + 3] = vector.w;
  }
  const int skip = at % kOf * static_cast<int>(sizeof(T));  // bytes
  if (skip & 4) shift_words<1>(words);
  if (skip & 8) shift_words<2>(words);
  if constexpr (sizeof(T) == 2) {
    if (skip & 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 16);
    }
  }
  Raw<T, 8> out;
  memcpy(&out, words, sizeof(out));
  return out;
}

__device__ inline float exp2_of(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// The position of a thread's group in the grid, and the counters of its masks.
template <int kLanes>
struct Place {
  int clip, head, length, lane, group;

  explicit __device__ Place(const Work& work)
      : clip(static_cast<int>(blockIdx.y) / work.heads),
        head(static_cast<int>(blockIdx.y) % work.heads),
        length(within(work.lengths[clip], work.frames)),
        lane(static_cast<int>(threadIdx.x) % kLanes),
        group(static_cast<int>(threadIdx.x) / kLanes) {}

  [[nodiscard]] __device__ std::int64_t row_of_keys(const Work& work, int query) const {
    return (std::int64_t{blockIdx.y} * work.frames + query) * work.keys;
  }
  [[nodiscard]] __device__ std::int64_t row_of_distances(const Work& work, int query) const {
    return ((std::int64_t{head} * work.batch + clip) * work.frames + query) * work.distances;
  }
  [[nodiscard]] __device__ int query(int round) const {
    constexpr int kGroups = kThreads / kLanes;
    return (static_cast<int>(blockIdx.x) * kRounds + round) * kGroups + group;
  }
  [[nodiscard]] __device__ Counters counters(const Work& work) const {
    if (work.drop.how.threshold == 0) return Counters(work.drop, formula::RoundKey{});
    return Counters(
        work.drop,
        formula::dropout_key(work.drop.base, work.drop.samples[clip] * work.heads + head, work.drop.layer));
  }
};

__device__ inline formula::DropoutPlace dropout_place(int query, int key) {
  return formula::dropout_place(static_cast<std::uint64_t>(query * kKeyPitch + key));
}

template <class T, int kLanes, int kUnits>
__global__ void __launch_bounds__(kThreads)
    probabilities_kernel(const __grid_constant__ Work work, T* scores, const T* places, T* dropped) {
  const Place<kLanes> place(work);
  const Counters counters = place.counters(work);
  const float factor = work.scale * 1.4426950408889634F;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const int query = place.query(round);
    if (query >= work.frames) return;
    T* row = scores + place.row_of_keys(work, query);
    T* drops = dropped == nullptr ? nullptr : dropped + place.row_of_keys(work, query);
    const T* distances = places + place.row_of_distances(work, query);
    const int first = work.frames - 1 - query;
    float x[kUnits][8];
    if (query < place.length) {
      Raw<T, 8> content[kUnits], shifted[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int key = (u * kLanes + place.lane) * 8;
        if (key < place.length) {
          content[u] = load<T, 8>(row + key);
          shifted[u] = window(distances, first + key, work.distances);
        }
      }
      float most = -INFINITY;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int key = (u * kLanes + place.lane) * 8;
        if (key < place.length) {
          float by_distance[8];
          widen(content[u], x[u]);
          widen(shifted[u], by_distance);
#pragma unroll
          for (int i = 0; i < 8; ++i) x[u][i] = key + i < place.length ? x[u][i] + by_distance[i] : -INFINITY;
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) x[u][i] = -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) most = fmaxf(most, x[u][i]);
      }
      most = Group<kLanes>::max(most);
      float total = 0.0F;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          x[u][i] = exp2_of((x[u][i] - most) * factor);
          total += x[u][i];
        }
      }
      const float inverse = 1.0F / Group<kLanes>::sum(total);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[u][i] *= inverse;
      }
    } else {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[u][i] = 0.0F;
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int key = (u * kLanes + place.lane) * 8;
      if (key >= work.keys) break;
      store<8>(row + key, x[u]);  // rounds x: dropout must see what the backward pass loads
      if (drops == nullptr) continue;
      const formula::DropoutPlace at = dropout_place(query, key);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        x[u][i] = counters.drop(x[u][i], counters.bits(static_cast<std::uint32_t>(at.counter) + i), at.high);
      store<8>(drops + key, x[u]);
    }
  }
}

template <class T, int kLanes, int kUnits>
__global__ void __launch_bounds__(kThreads)
    probabilities_backward_kernel(const __grid_constant__ Work work, const T* probabilities, T* grads,
                                  T* dplaces, T* dropped) {
  // A row's gradients, with a vector of zeros before and after them.
  constexpr int kRow = kUnits * kLanes * 8 + 16;
  __shared__ alignas(16) T rows[kThreads / kLanes][kRow];
  const Place<kLanes> place(work);
  const Counters counters = place.counters(work);
  T* mine = rows[place.group];
  if (place.lane < 2) {
    float zeros[8] = {};
    store<8>(mine + place.lane * (kRow - 8), zeros);
  }
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const int query = place.query(round);
    if (query >= work.frames) return;
    const std::int64_t at_row = place.row_of_keys(work, query);
    float p[kUnits][8], g[kUnits][8];
    float dot = 0.0F;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int key = (u * kLanes + place.lane) * 8;
      if (query < place.length && key < place.length) {
        widen(load<T, 8>(probabilities + at_row + key), p[u]);
        widen(load<T, 8>(grads + at_row + key), g[u]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) p[u][i] = g[u][i] = 0.0F;
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int key = (u * kLanes + place.lane) * 8;
      if (dropped != nullptr && key < work.keys) {
        const formula::DropoutPlace at = dropout_place(query, key);
        float kept[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const auto bits = counters.bits(static_cast<std::uint32_t>(at.counter) + i);
          kept[i] = counters.drop(p[u][i], bits, at.high);
          g[u][i] = counters.drop(g[u][i], bits, at.high);
        }
        store<8>(dropped + at_row + key, kept);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (key + i >= place.length) g[u][i] = 0.0F;
        dot += p[u][i] * g[u][i];
      }
    }
    dot = Group<kLanes>::sum(dot);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int key = (u * kLanes + place.lane) * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) g[u][i] = work.scale * p[u][i] * (g[u][i] - dot);
      store<8>(mine + 8 + key, g[u]);
      if (key < work.keys) store<8>(grads + at_row + key, g[u]);
    }
    Group<kLanes>::sync();
    T* to = dplaces + place.row_of_distances(work, query);
    const int first = work.frames - 1 - query;
#pragma unroll 2
    for (int column = place.lane * 8; column < work.distances; column += kLanes * 8) {
      const int from = column - first + 8;
      Raw<T, 8> out{};
      if (from > 0 && from < kRow - 8) out = window(mine, from, kRow);
      *reinterpret_cast<Raw<T, 8>*>(to + column) = out;
    }
    Group<kLanes>::sync();
  }
}

Work work_of(const AttentionShape& shape, const ProbabilityWork& work) {
  return {work.lengths,
          dropping(work.drop),
          static_cast<int>(shape.batch),
          static_cast<int>(shape.frames),
          static_cast<int>(shape.heads),
          static_cast<int>(shape.keys()),
          static_cast<int>(shape.distances()),
          static_cast<float>(work.scale)};
}

// How a row is divided among lanes.
template <int kLanesOf, int kUnitsOf>
struct Cut {
  static constexpr int kLanes = kLanesOf, kUnits = kUnitsOf;
  static constexpr std::int64_t kKeys = std::int64_t{kLanes} * kUnits * 8;
};

// Calls run(a Cut, the grid) with the smallest Cut that holds a row.
template <class Run>
void with_cut(const AttentionShape& shape, Run&& run) {
  const auto with = [&](auto cut) {
    const std::int64_t rows = kThreads / decltype(cut)::kLanes * kRounds;
    run(cut, dim3(static_cast<unsigned>(ceil_div(shape.frames, rows)),
                  static_cast<unsigned>(shape.batch * shape.heads)));
  };
  const std::int64_t keys = shape.keys();
  if (keys <= Cut<32, 1>::kKeys) return with(Cut<32, 1>());
  if (keys <= Cut<32, 2>::kKeys) return with(Cut<32, 2>());
  if (keys <= Cut<32, 4>::kKeys) return with(Cut<32, 4>());
  if (keys <= Cut<kThreads, 1>::kKeys) return with(Cut<kThreads, 1>());
  with(Cut<kThreads, 4>());
  static_assert(Cut<kThreads, 4>::kKeys >= kMostFrames);
}

// Calls run(a null pointer to the shape's element type).
template <class Run>
void with_type(const AttentionShape& shape, Run&& run) {
  if (shape.bf16) return run(static_cast<Bf16*>(nullptr));
  run(static_cast<float*>(nullptr));
}

}  // namespace

const char* probabilities(const AttentionShape& shape, const ProbabilityWork& work, void* scores,
                          const void* places, void* dropped, void* stream) {
  with_type(shape, [&]<class T>(T*) {
    with_cut(shape, [&](auto cut, dim3 grid) {
      using C = decltype(cut);
      probabilities_kernel<T, C::kLanes, C::kUnits><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          work_of(shape, work), static_cast<T*>(scores), static_cast<const T*>(places),
          static_cast<T*>(dropped));
    });
  });
  return launched();
}

const char* probabilities_backward(const AttentionShape& shape, const ProbabilityWork& work,
                                   const void* probabilities, void* grads, void* dplaces, void* dropped,
                                   void* stream) {
  with_type(shape, [&]<class T>(T*) {
    with_cut(shape, [&](auto cut, dim3 grid) {
      using C = decltype(cut);
      probabilities_backward_kernel<T, C::kLanes, C::kUnits>
          <<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
              work_of(shape, work), static_cast<const T*>(probabilities), static_cast<T*>(grads),
              static_cast<T*>(dplaces), static_cast<T*>(dropped));
    });
  });
  return launched();
}

}  // namespace octavo_train::cuda
