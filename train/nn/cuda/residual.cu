// add_norm() and layer_norm() on a GPU. A warp processes a row and keeps it in registers between the mean,
// the variance and the result, so that memory is read once. In the backward pass the lanes also keep the sums
// of the norm's gradients over the rows of their warp. The maximum number of blocks is fixed, so that the
// order of these sums is the same on every GPU.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/residual.h"

#include "train/nn/cuda/dropping.cuh"
#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/sums.cuh"
#include "train/nn/cuda/vectors.cuh"

#include <algorithm>

namespace octavo_train::cuda {
namespace {

constexpr int kVector = 8, kWarps = kNormWarps;

struct Row {
  std::int64_t rows, rows_of_sample, channels;
};

__device__ inline void load_floats(const float* from, float* out) { widen(load<float, kVector>(from), out); }

// Lane l processes the vectors l, l + 32, ... of a row.
template <class T, int kVectors>
__global__ void __launch_bounds__(32 * kWarps)
    norm_kernel(const __grid_constant__ Row shape, const __grid_constant__ NormForward work,
                const __grid_constant__ Dropping drop) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.y;
  if (row >= shape.rows) return;
  const int channels = static_cast<int>(shape.channels), lane = threadIdx.x;
  const T* x = static_cast<const T*>(work.x) + row * channels;
  const T* y = static_cast<const T*>(work.y) + row * channels;
  Raw<T, kVector> raw[kVectors], beside[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int channel = (lane + 32 * v) * kVector;
    raw[v] = beside[v] = {};
    if (channel < channels) {
      raw[v] = load<T, kVector>(x + channel);
      if (work.y != nullptr) beside[v] = load<T, kVector>(y + channel);
    }
  }
  float s[kVectors][kVector], sum = 0.0F;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) widen(raw[v], s[v]);
  if (work.y != nullptr) {
    const bool drops = drop.how.threshold != 0;
    const std::int64_t sample = row / shape.rows_of_sample;
    const auto first = static_cast<std::uint64_t>((row - sample * shape.rows_of_sample) * channels);
    const float scale = static_cast<float>(work.scale);
    const Counters counters(drop, drops ? sample : -1);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int channel = (lane + 32 * v) * kVector;
      float add[kVector];
      widen(beside[v], add);
      if (drops) counters.drop8(first + channel, add);
#pragma unroll
      for (int i = 0; i < kVector; ++i) s[v][i] += scale * add[i];
      if (channel < channels) store<kVector>(static_cast<T*>(work.s) + row * channels + channel, s[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += s[v][i];  // zeros beyond the channels
  }
  const float count = static_cast<float>(channels), mean = warp_sum(sum) / count;
  float square = 0.0F;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if ((lane + 32 * v) * kVector < channels) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) square += (s[v][i] - mean) * (s[v][i] - mean);
    }
  }
  const float root = rsqrtf(warp_sum(square) / count + static_cast<float>(work.eps));
  if (work.statistics != nullptr && lane == 0)
    reinterpret_cast<float2*>(work.statistics)[row] = make_float2(mean, root);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int channel = (lane + 32 * v) * kVector;
    if (channel < channels) {
      float weight[kVector], bias[kVector];
      load_floats(work.weight + channel, weight);
      load_floats(work.bias + channel, bias);
#pragma unroll
      for (int i = 0; i < kVector; ++i) s[v][i] = (s[v][i] - mean) * root * weight[i] + bias[i];
      store<kVector>(static_cast<T*>(work.out) + row * channels + channel, s[v]);
    }
  }
}

template <class T, int kVectors>
__global__ void __launch_bounds__(32 * kWarps, sizeof(T) == 2 ? 3 : 1)
    norm_backward_kernel(const __grid_constant__ Row shape, const __grid_constant__ NormBackward work,
                         const __grid_constant__ Dropping drop) {
  __shared__ float cells[2][kVectors * 32 * kVector];
  const int channels = static_cast<int>(shape.channels), lane = threadIdx.x;
  const float count = static_cast<float>(channels), scale = static_cast<float>(work.scale);
  float dbias[kVectors][kVector] = {}, dweight[kVectors][kVector] = {};
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.y; row < shape.rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    Raw<T, kVector> raw_s[kVectors], raw_d[kVectors], raw_add[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int channel = (lane + 32 * v) * kVector;
      const std::int64_t at = row * channels + channel;
      raw_s[v] = raw_d[v] = raw_add[v] = {};
      if (channel < channels) {
        raw_s[v] = load<T, kVector>(static_cast<const T*>(work.s) + at);
        raw_d[v] = load<T, kVector>(static_cast<const T*>(work.dout) + at);
        if (work.ds != nullptr) raw_add[v] = load<T, kVector>(static_cast<const T*>(work.ds) + at);
      }
    }
    const float2 known = reinterpret_cast<const float2*>(work.statistics)[row];
    const float mean = known.x, root = known.y;
    float first = 0.0F, second = 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int channel = (lane + 32 * v) * kVector;
      if (channel < channels) {
        float s[kVector], d[kVector], weight[kVector];
        widen(raw_s[v], s);
        widen(raw_d[v], d);
        load_floats(work.weight + channel, weight);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float hat = (s[i] - mean) * root;
          dbias[v][i] += d[i];
          dweight[v][i] += d[i] * hat;
          first += d[i] * weight[i];
          second += d[i] * weight[i] * hat;
        }
      }
    }
    first = warp_sum(first) / count;
    second = warp_sum(second) / count;
    const bool drops = drop.how.threshold != 0 && work.dy != nullptr;
    const std::int64_t sample = row / shape.rows_of_sample;
    const auto before = static_cast<std::uint64_t>((row - sample * shape.rows_of_sample) * channels);
    const Counters counters(drop, drops ? sample : -1);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int channel = (lane + 32 * v) * kVector;
      if (channel < channels) {
        const std::int64_t at = row * channels + channel;
        float s[kVector], d[kVector], weight[kVector], dx[kVector], dy[kVector];
        widen(raw_s[v], s);
        widen(raw_d[v], d);
        widen(raw_add[v], dx);
        load_floats(work.weight + channel, weight);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float hat = (s[i] - mean) * root;
          dx[i] += root * (d[i] * weight[i] - first - hat * second);
          dy[i] = scale * dx[i];
        }
        store<kVector>(static_cast<T*>(work.dx) + at, dx);
        if (work.dy != nullptr) {
          if (drops) counters.drop8(before + channel, dy);
          store<kVector>(static_cast<T*>(work.dy) + at, dy);
        }
      }
    }
  }
  // The warps add their sums one after the other.
  for (int warp = 0; warp < kWarps; ++warp) {
    if (threadIdx.y == warp) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const int at = (v * kVector + i) * 32 + lane;  // no two lanes use the same bank
          cells[0][at] = dbias[v][i] + (warp == 0 ? 0.0F : cells[0][at]);
          cells[1][at] = dweight[v][i] + (warp == 0 ? 0.0F : cells[1][at]);
        }
      }
    }
    __syncthreads();
  }
  float* out = work.partial + std::int64_t{blockIdx.x} * 2 * channels;
  for (int channel = threadIdx.y * 32 + lane; channel < channels; channel += 32 * kWarps) {
    const int vector = channel / kVector;
    const int at = (vector / 32 * kVector + channel % kVector) * 32 + vector % 32;
    out[channel] = cells[0][at];
    out[channels + channel] = cells[1][at];
  }
}

// Calls f.template operator()<T, kVectors>() for the shape.
template <class F>
void dispatch(const NormShape& shape, const F& f) {
  const auto sized = [&]<class T>() {
    if (shape.channels <= 256) return f.template operator()<T, 1>();
    if (shape.channels <= 512) return f.template operator()<T, 2>();
    return f.template operator()<T, 4>();
  };
  return shape.bf16 ? sized.template operator()<Bf16>() : sized.template operator()<float>();
}

}  // namespace

const char* norm_forward(const NormShape& shape, const NormForward& work, void* stream) {
  const Row row{shape.rows, shape.rows_of_sample, shape.channels};
  dispatch(shape, [&]<class T, int kVectors>() {
    norm_kernel<T, kVectors><<<static_cast<unsigned>(ceil_div(shape.rows, kWarps)), dim3(32, kWarps), 0,
                               static_cast<cudaStream_t>(stream)>>>(row, work, dropping(work.drop));
  });
  return launched();
}

const char* norm_backward(const NormShape& shape, const NormBackward& work, void* stream) {
  const Row row{shape.rows, shape.rows_of_sample, shape.channels};
  const std::int64_t blocks = norm_backward_blocks(shape);
  const auto on = static_cast<cudaStream_t>(stream);
  dispatch(shape, [&]<class T, int kVectors>() {
    norm_backward_kernel<T, kVectors>
        <<<static_cast<unsigned>(blocks), dim3(32, kWarps), 0, on>>>(row, work, dropping(work.drop));
  });
  column_sums(work.partial, blocks, 2 * shape.channels, work.dnorm, nullptr, 0.0, on);
  return launched();
}

}  // namespace octavo_train::cuda
