// silu_dropout() on a GPU, forward and backward. If the number of elements of a sample is a multiple of two
// times kDropoutPair, a warp processes blocks of that size, and a lane's two vectors share the counters of
// their masks, which halves the number of hashes. Otherwise each thread processes one vector.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/dropping.cuh"
#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/residual.h"
#include "train/nn/cuda/vectors.cuh"

namespace octavo_train::cuda {
namespace {

constexpr int kVector = 8, kThreads = 256;
constexpr int kPair = formula::kDropoutPair, kBlock = 2 * kPair;
constexpr int kTogether = 4;  // blocks that a warp processes in sequence
static_assert(kPair == 32 * kVector);

struct Work {
  std::int64_t numel, inner;
};

// Computes the results of eight elements, without dropout.
template <bool kBackward>
__device__ inline void bend(const float* x, const float* d, float* out) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if constexpr (kBackward) {
      out[i] = d[i] * silu_slope(x[i]);
    } else {
      out[i] = x[i] * sigmoid(x[i]);
    }
  }
}

template <class T, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    silu_blocks_kernel(const __grid_constant__ Work work, const T* x, const T* dout, T* to,
                       const __grid_constant__ Dropping drop) {
  const std::int64_t blocks_of_sample = work.inner / kBlock;
  const std::int64_t tasks_of_sample = ceil_div(blocks_of_sample, kTogether);
  const std::int64_t task = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const std::int64_t sample = task / tasks_of_sample;
  if (sample * work.inner >= work.numel) return;
  const std::int64_t first = (task - sample * tasks_of_sample) * kTogether;
  const int lane = threadIdx.x % 32;
  const bool drops = drop.how.threshold != 0;
  const Counters counters(drop, drops ? sample : -1);
  for (std::int64_t block = first; block < min(first + kTogether, blocks_of_sample); ++block) {
    const std::int64_t at = sample * work.inner + block * kBlock + lane * kVector;
    const auto counter = static_cast<std::uint32_t>(block * kPair + lane * kVector);
    Raw<T, kVector> raw[2], raw_d[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      raw[half] = load<T, kVector>(x + at + half * kPair);
      if constexpr (kBackward) raw_d[half] = load<T, kVector>(dout + at + half * kPair);
    }
    float out[2][kVector];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float wide[kVector], d[kVector];
      widen(raw[half], wide);
      if constexpr (kBackward) widen(raw_d[half], d);
      bend<kBackward>(wide, d, out[half]);
    }
    if (drops) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const scalar::I32 bits = counters.bits(counter + i);
        out[0][i] = counters.drop(out[0][i], bits, false);
        out[1][i] = counters.drop(out[1][i], bits, true);
      }
    }
    store<kVector>(to + at, out[0]);
    store<kVector>(to + at + kPair, out[1]);
  }
}

template <class T, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    silu_kernel(const __grid_constant__ Work work, const T* x, const T* dout, T* to,
                const __grid_constant__ Dropping drop) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (at >= work.numel) return;
  float wide[kVector], d[kVector], out[kVector];
  widen(load<T, kVector>(x + at), wide);
  if constexpr (kBackward) widen(load<T, kVector>(dout + at), d);
  bend<kBackward>(wide, d, out);
  if (drop.how.threshold != 0) {
    const std::int64_t sample = at / work.inner;
    Counters(drop, sample).drop8(static_cast<std::uint64_t>(at - sample * work.inner), out);
  }
  store<kVector>(to + at, out);
}

template <class T, bool kBackward>
void launch(const Work& work, const T* x, const T* dout, T* to, const Dropping& drop, cudaStream_t stream) {
  const auto grid = [](std::int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); };
  if (work.inner % kBlock == 0) {
    const std::int64_t tasks = work.numel / work.inner * ceil_div(work.inner / kBlock, kTogether);
    silu_blocks_kernel<T, kBackward><<<grid(tasks * 32), kThreads, 0, stream>>>(work, x, dout, to, drop);
  } else {
    silu_kernel<T, kBackward><<<grid(work.numel / kVector), kThreads, 0, stream>>>(work, x, dout, to, drop);
  }
}

template <class T>
void launch(const Work& work, const void* x, const void* dout, void* to, const Dropping& drop,
            cudaStream_t stream) {
  const auto *from = static_cast<const T*>(x), *d = static_cast<const T*>(dout);
  if (dout == nullptr) {
    launch<T, false>(work, from, d, static_cast<T*>(to), drop, stream);
  } else {
    launch<T, true>(work, from, d, static_cast<T*>(to), drop, stream);
  }
}

}  // namespace

bool has_code() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, silu_kernel<float, false>) == cudaSuccess;
  if (!found) static_cast<void>(cudaGetLastError());  // clears the error, which is handled here
  return found;
}

const char* silu_dropout(bool bf16, std::int64_t numel, std::int64_t inner, const void* x, const void* dout,
                         const DropoutArgs& drop, void* to, void* stream) {
  const Work work{numel, inner};
  const auto on = static_cast<cudaStream_t>(stream);
  if (bf16) {
    launch<Bf16>(work, x, dout, to, dropping(drop), on);
  } else {
    launch<float>(work, x, dout, to, dropping(drop), on);
  }
  return launched();
}

}  // namespace octavo_train::cuda
