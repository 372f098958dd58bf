// conv_module() on a GPU. A thread of the depthwise kernels owns two channels and processes a run of frames
// in order; the frames that the convolution kernel covers stay in registers. A warp accesses 64 neighbouring
// channels. Runs are long, so that few frames are read twice. The other kernels process rows. Blocks compute
// partial sums in fp32, which are added up in double in a fixed order.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/convolution.h"

#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/sums.cuh"
#include "train/nn/cuda/vectors.cuh"

#include <algorithm>

namespace octavo_train::cuda {
namespace {

constexpr int kWidth = kConvWidth, kReach = kWidth / 2;
constexpr int kOwn = 2;                          // channels of a thread
constexpr int kLanes = 32, kWarps = kConvWarps;  // a block: channels x runs
constexpr int kBlockChannels = kLanes * kOwn;
constexpr int kKept = kWidth - 1;  // frames that stay in registers from one step to the next

struct Walk {
  const std::int64_t* lengths;
  std::int64_t frames, channels, runs_of_clip, runs;
  int run, channel_blocks;
};

// A thread's part of the work.
struct Place {
  std::int64_t channel, clip, part;  // `part` counts the blocks along the runs
  int begin, end, length;            // frames of the clip; length is at most their number
  bool active;

  __device__ explicit Place(const Walk& walk) {
    const int across = static_cast<int>(blockIdx.x % walk.channel_blocks);
    part = blockIdx.x / walk.channel_blocks;
    channel = std::int64_t{across} * kBlockChannels + threadIdx.x * kOwn;
    const std::int64_t run = part * kWarps + threadIdx.y;
    active = channel < walk.channels && run < walk.runs;
    clip = active ? run / walk.runs_of_clip : 0;
    begin = static_cast<int>(run - clip * walk.runs_of_clip) * walk.run;
    end = min(begin + walk.run, static_cast<int>(walk.frames));
    const std::int64_t most = walk.frames;
    length = active ? static_cast<int>(max(std::int64_t{0}, min(walk.lengths[clip], most))) : 0;
  }
};

__device__ inline void load_weight(const float* weight, std::int64_t channel, float (&out)[kWidth][kOwn]) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) out[k][c] = weight[(channel + c) * kWidth + k];
  }
}

// Loads the gated values of kCount frames from `from` on; zeros outside [0, limit).
template <int kCount, class T>
__device__ inline void load_gated(const T* z, std::int64_t channels, int from, int limit,
                                  float (*out)[kOwn]) {
  Raw<T, kOwn> values[kCount], gates[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int frame = from + i;
    values[i] = gates[i] = {};
    if (frame >= 0 && frame < limit) {
      const T* at = z + 2 * channels * frame;
      values[i] = load<T, kOwn>(at);
      gates[i] = load<T, kOwn>(at + channels);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float value[kOwn], gate[kOwn];
    widen(values[i], value);
    widen(gates[i], gate);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) out[i][c] = value[c] * sigmoid(gate[c]);
  }
}

// Returns zero for a negative x, which is a rounding error. NaN stays NaN.
template <class F>
__device__ inline F at_least_zero(F x) {
  return x < F{0} ? F{0} : x;
}

// `partial` is [runs, 2, channels]: the mean of each run's frames as they are stored, and the sum of squared
// differences from it. The sums are of differences from the run's first value, so that a mean far from zero
// costs no precision.
template <class T>
__global__ void __launch_bounds__(kLanes* kWarps)
    mix_kernel(const __grid_constant__ Walk walk, const T* z, const float* weight, T* y, float* partial) {
  constexpr int kStep = 8;
  const Place place(walk);
  if (!place.active) return;
  const std::int64_t channels = walk.channels;
  z += place.clip * walk.frames * 2 * channels + place.channel;
  y += place.clip * walk.frames * channels + place.channel;
  float w[kWidth][kOwn], window[kKept + kStep][kOwn];
  load_weight(weight, place.channel, w);
  const int limit = min(place.length, place.end + kReach);
  load_gated<kKept>(z, channels, place.begin - kReach, limit, window);
  float first[kOwn] = {}, sum[kOwn] = {}, square[kOwn] = {};
  for (int frame = place.begin; frame < place.end; frame += kStep) {
    load_gated<kStep>(z, channels, frame + kReach, limit, window + kKept);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (frame + i < place.end) {
        float mixed[kOwn] = {};
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
#pragma unroll
          for (int c = 0; c < kOwn; ++c) mixed[c] += w[k][c] * window[i + k][c];
        }
        store<kOwn>(y + (frame + i) * channels, mixed);
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          if (i == 0 && frame == place.begin) first[c] = mixed[c];
          const float beyond = mixed[c] - first[c];
          sum[c] += beyond;
          square[c] += beyond * beyond;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) window[i][c] = window[i + kStep][c];
    }
  }
  if (partial == nullptr) return;
  const float count = static_cast<float>(place.end - place.begin);
  float* out = partial + (place.part * kWarps + threadIdx.y) * 2 * channels + place.channel;
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    out[c] = first[c] + sum[c] / count;
    out[channels + c] = at_least_zero(square[c] - sum[c] * (sum[c] / count));
  }
}

struct Running {
  float *mean, *var;
  std::int64_t* batches;
  double momentum, eps;
};

// Computes the statistics of all frames from the statistics of the runs.
__global__ void __launch_bounds__(1024)
    statistics_kernel(const __grid_constant__ Walk walk, const float* partial, Running running,
                      float* statistics) {
  const std::int64_t channels = walk.channels, channel = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  const bool active = channel < channels;
  const float* column = partial + (active ? channel : 0);
  const double origin = column[0];
  double sum = 0.0, square = 0.0;
  for (std::int64_t run = threadIdx.y; run < walk.runs; run += 32) {
    const std::int64_t begin = run % walk.runs_of_clip * walk.run;
    const double count = static_cast<double>(min(std::int64_t{walk.run}, walk.frames - begin));
    const double beyond = column[run * 2 * channels] - origin;
    sum += count * beyond;
    square += column[(run * 2 + 1) * channels] + count * beyond * beyond;
  }
  sum = column_total(sum);
  square = column_total(square);
  if (threadIdx.y != 0 || !active) return;
  const double frames = static_cast<double>(walk.runs / walk.runs_of_clip * walk.frames);
  const double mean = origin + sum / frames, total = at_least_zero(square - sum * (sum / frames));
  statistics[channel] = static_cast<float>(mean);
  statistics[channels + channel] = static_cast<float>(rsqrt(total / frames + running.eps));
  const double m = running.momentum, unbiased = total / fmax(1.0, frames - 1.0);
  running.mean[channel] = static_cast<float>((1.0 - m) * running.mean[channel] + m * mean);
  running.var[channel] = static_cast<float>((1.0 - m) * running.var[channel] + m * unbiased);
  if (channel == 0 && running.batches != nullptr) ++*running.batches;
}

__global__ void frozen_statistics_kernel(std::int64_t channels, Running running, float* statistics) {
  const std::int64_t channel = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  statistics[channel] = running.mean[channel];
  statistics[channels + channel] = static_cast<float>(rsqrt(running.var[channel] + running.eps));
}

// The statistics and parameters that normalize kCount channels.
template <int kCount>
struct Normal {
  float mean[kCount], root[kCount], weight[kCount], bias[kCount];

  __device__ Normal(const float* statistics, const ConvNorm& norm, std::int64_t channels,
                    std::int64_t channel) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      mean[c] = statistics[channel + c];
      root[c] = statistics[channels + channel + c];
      weight[c] = norm.weight[channel + c];
      bias[c] = norm.bias[channel + c];
    }
  }
  [[nodiscard]] __device__ float hat(float y, int c) const { return (y - mean[c]) * root[c]; }
  [[nodiscard]] __device__ float out(float hat, int c) const { return hat * weight[c] + bias[c]; }
};

// The layout of kernels that process rows: a block of 32 lanes of eight channels x kRowWarps rows processes
// kBlockRows rows.
constexpr int kVector = 8, kRowWarps = 8, kTogether = 4, kBlockRows = kConvBlockRows;
struct Rows {
  std::int64_t rows, channels;
  int channel_blocks;
};

template <class T>
__global__ void __launch_bounds__(32 * kRowWarps)
    normalise_kernel(const __grid_constant__ Rows shape, const T* y, const float* statistics,
                     const __grid_constant__ ConvNorm norm, T* out) {
  const std::int64_t channels = shape.channels;
  const std::int64_t channel = (std::int64_t{blockIdx.x % shape.channel_blocks} * 32 + threadIdx.x) * kVector;
  if (channel >= channels) return;
  const Normal<kVector> normal(statistics, norm, channels, channel);
  const std::int64_t first = std::int64_t{blockIdx.x / shape.channel_blocks} * kBlockRows + threadIdx.y;
#pragma unroll
  for (int batch = 0; batch < kBlockRows / kRowWarps; batch += kTogether) {
    Raw<T, kVector> raw[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t row = first + (batch + i) * kRowWarps;
      if (row < shape.rows) raw[i] = load<T, kVector>(y + row * channels + channel);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::int64_t row = first + (batch + i) * kRowWarps;
      if (row >= shape.rows) continue;
      float x[kVector];
      widen(raw[i], x);
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        const float n = normal.out(normal.hat(x[c], c), c);
        x[c] = n * sigmoid(n);
      }
      store<kVector>(out + row * channels + channel, x);
    }
  }
}

// `partial` is [blocks of rows, 2, channels]: the sums of dn and of dn * hat, where n is normalised y.
template <class T>
__global__ void __launch_bounds__(32 * kRowWarps)
    norm_sums_kernel(const __grid_constant__ Rows shape, const T* dout, const T* y, const float* statistics,
                     const __grid_constant__ ConvNorm norm, float* partial) {
  __shared__ float cells[kRowWarps][2][32 * kVector];
  const std::int64_t channels = shape.channels;
  const std::int64_t across = blockIdx.x % shape.channel_blocks, part = blockIdx.x / shape.channel_blocks;
  const std::int64_t channel = (across * 32 + threadIdx.x) * kVector;
  float sums[2][kVector] = {};
  if (channel < channels) {
    const Normal<kVector> normal(statistics, norm, channels, channel);
    const std::int64_t first = part * kBlockRows + threadIdx.y;
#pragma unroll
    for (int batch = 0; batch < kBlockRows / kRowWarps; batch += kTogether) {
      Raw<T, kVector> raw_y[kTogether], raw_d[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const std::int64_t row = first + (batch + i) * kRowWarps;
        raw_y[i] = raw_d[i] = {};
        if (row < shape.rows) {
          raw_y[i] = load<T, kVector>(y + row * channels + channel);
          raw_d[i] = load<T, kVector>(dout + row * channels + channel);
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + (batch + i) * kRowWarps >= shape.rows) continue;
        float x[kVector], d[kVector];
        widen(raw_y[i], x);
        widen(raw_d[i], d);
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
          const float hat = normal.hat(x[c], c), dn = d[c] * silu_slope(normal.out(hat, c));
          sums[0][c] += dn;
          sums[1][c] += dn * hat;
        }
      }
    }
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) cells[threadIdx.y][s][threadIdx.x * kVector + c] = sums[s][c];
  }
  __syncthreads();
  const int thread = threadIdx.y * 32 + threadIdx.x;  // a channel of the block
  const std::int64_t mine = across * 32 * kVector + thread;
  if (mine >= channels) return;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kRowWarps; ++warp) sum += cells[warp][s][thread];
    partial[(part * 2 + s) * channels + mine] = sum;
  }
}

// Computes the gradient of y at kCount frames from `from` on; zeros outside [0, limit).
template <int kCount, class T>
__device__ inline void load_mixed_gradient(const T* dout, const T* y, std::int64_t channels, int from,
                                           int limit, const Normal<kOwn>& normal,
                                           const float (&means)[2][kOwn], float (*out)[kOwn]) {
  Raw<T, kOwn> raw_d[kCount], raw_y[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int frame = from + i;
    raw_d[i] = raw_y[i] = {};
    if (frame >= 0 && frame < limit) {
      raw_d[i] = load<T, kOwn>(dout + frame * channels);
      raw_y[i] = load<T, kOwn>(y + frame * channels);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool inside = from + i >= 0 && from + i < limit;
    float d[kOwn], x[kOwn];
    widen(raw_d[i], d);
    widen(raw_y[i], x);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const float hat = normal.hat(x[c], c), dn = d[c] * silu_slope(normal.out(hat, c));
      const float dy = normal.weight[c] * normal.root[c] * (dn - means[0][c] - hat * means[1][c]);
      out[i][c] = inside ? dy : 0.0F;
    }
  }
}

// `means` are the means of dn and dn * hat over all frames (zeros if statistics are frozen); `partial` is
// [blocks of runs, channels, width].
template <class T>
__global__ void __launch_bounds__(kLanes* kWarps, sizeof(T) == 2 ? 4 : 1)
    mix_backward_kernel(const __grid_constant__ Walk walk, const T* dout, const T* z, const T* y,
                        const float* weight, const float* statistics, const __grid_constant__ ConvNorm norm,
                        const float* means, T* dz, float* partial) {
  constexpr int kStep = 4;
  __shared__ float cells[kWarps][kBlockChannels * kWidth];
  const Place place(walk);
  const std::int64_t channels = walk.channels;
  float dw[kWidth][kOwn] = {};
  if (place.active) {
    const std::int64_t first = place.clip * walk.frames * channels;
    z += 2 * first + place.channel;
    dz += 2 * first + place.channel;
    y += first + place.channel;
    dout += first + place.channel;
    float w[kWidth][kOwn], window[kKept + kStep][kOwn], mean[2][kOwn];
    load_weight(weight, place.channel, w);
    const Normal<kOwn> normal(statistics, norm, channels, place.channel);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      mean[0][c] = means[place.channel + c];
      mean[1][c] = means[channels + place.channel + c];
    }
    const int stop = min(place.length, place.end);
    const int limit = min(static_cast<int>(walk.frames), stop + kReach);
    if (place.begin < stop) {
#pragma unroll
      for (int i = 0; i < kKept; i += kStep)
        load_mixed_gradient<kStep>(dout, y, channels, place.begin - kReach + i, limit, normal, mean,
                                   window + i);
    }
    for (int frame = place.begin; frame < stop; frame += kStep) {
      Raw<T, kOwn> values[kStep], gates[kStep];
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        values[i] = gates[i] = {};
        if (frame + i < stop) {
          const T* at = z + 2 * channels * (frame + i);
          values[i] = load<T, kOwn>(at);
          gates[i] = load<T, kOwn>(at + channels);
        }
      }
      load_mixed_gradient<kStep>(dout, y, channels, frame + kReach, limit, normal, mean, window + kKept);
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        float value[kOwn], gate[kOwn], dx[kOwn] = {};
        widen(values[i], value);
        widen(gates[i], gate);
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          const float open = sigmoid(gate[c]), x = value[c] * open;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            dx[c] += w[k][c] * window[i + kKept - k][c];
            dw[k][c] += x * window[i + kKept - k][c];
          }
          value[c] = dx[c] * open;
          gate[c] = dx[c] * x * (1.0F - open);
        }
        if (frame + i < stop) {
          T* at = dz + 2 * channels * (frame + i);
          store<kOwn>(at, value);
          store<kOwn>(at + channels, gate);
        }
      }
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) window[i][c] = window[i + kStep][c];
      }
    }
    for (int frame = max(place.begin, stop); frame < place.end; ++frame) {
      float zeros[kOwn] = {};
      store<kOwn>(dz + 2 * channels * frame, zeros);
      store<kOwn>(dz + 2 * channels * frame + channels, zeros);
    }
  }
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) cells[threadIdx.y][(threadIdx.x * kOwn + c) * kWidth + k] = dw[k][c];
  }
  __syncthreads();
  const std::int64_t before = (place.channel - threadIdx.x * kOwn) * kWidth;  // the block's first value
  for (int i = threadIdx.y * kLanes + threadIdx.x; i < kBlockChannels * kWidth; i += kLanes * kWarps) {
    if (before + i >= channels * kWidth) break;
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += cells[warp][i];
    partial[place.part * channels * kWidth + before + i] = sum;
  }
}

Walk walk_of(const ConvShape& shape, const std::int64_t* lengths) {
  const std::int64_t runs_of_clip = ceil_div(shape.frames, shape.run);
  return {lengths,
          shape.frames,
          shape.channels,
          runs_of_clip,
          shape.runs(),
          shape.run,
          static_cast<int>(ceil_div(shape.channels, kBlockChannels))};
}
unsigned blocks_of(const Walk& walk) {
  return static_cast<unsigned>(walk.channel_blocks * ceil_div(walk.runs, kWarps));
}
Rows rows_of(const ConvShape& shape) {
  return {shape.batch * shape.frames, shape.channels,
          static_cast<int>(ceil_div(shape.channels, 32 * kVector))};
}
unsigned blocks_of(const Rows& rows) {
  return static_cast<unsigned>(rows.channel_blocks * ceil_div(rows.rows, kBlockRows));
}

template <class T>
void launch_mix(const Walk& walk, const void* z, const float* weight, void* y, float* partial,
                cudaStream_t stream) {
  mix_kernel<T><<<blocks_of(walk), dim3(kLanes, kWarps), 0, stream>>>(walk, static_cast<const T*>(z), weight,
                                                                      static_cast<T*>(y), partial);
}

template <class T>
void launch_normalise(const Rows& rows, const void* y, const float* statistics, const ConvNorm& norm,
                      void* out, cudaStream_t stream) {
  normalise_kernel<T><<<blocks_of(rows), dim3(32, kRowWarps), 0, stream>>>(
      rows, static_cast<const T*>(y), statistics, norm, static_cast<T*>(out));
}

template <class T>
void launch_backward(const ConvShape& shape, const T* dout, const T* z, const T* y,
                     const std::int64_t* lengths, const float* weight, const float* statistics,
                     const ConvNorm& norm, T* dz, float* dweight, float* dnorm, float* means, float* partial,
                     cudaStream_t stream) {
  const Rows rows = rows_of(shape);
  norm_sums_kernel<T>
      <<<blocks_of(rows), dim3(32, kRowWarps), 0, stream>>>(rows, dout, y, statistics, norm, partial);
  column_sums(partial, ceil_div(rows.rows, kBlockRows), 2 * shape.channels, dnorm, means,
              norm.frozen ? 0.0 : 1.0 / static_cast<double>(rows.rows), stream);
  const Walk walk = walk_of(shape, lengths);
  mix_backward_kernel<T><<<blocks_of(walk), dim3(kLanes, kWarps), 0, stream>>>(
      walk, dout, z, y, weight, statistics, norm, means, dz, partial);
  column_sums(partial, ceil_div(walk.runs, kWarps), shape.channels * kWidth, dweight, nullptr, 0.0, stream);
}

}  // namespace

const char* conv_mix(const ConvShape& shape, const void* z, const std::int64_t* lengths, const float* weight,
                     const ConvNorm& norm, void* y, float* statistics, float* partial, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const Walk walk = walk_of(shape, lengths);
  const Running running{norm.running_mean, norm.running_var, norm.batches, norm.momentum, norm.eps};
  float* sums = norm.frozen ? nullptr : partial;
  if (shape.bf16) {
    launch_mix<Bf16>(walk, z, weight, y, sums, on);
  } else {
    launch_mix<float>(walk, z, weight, y, sums, on);
  }
  if (norm.frozen) {
    frozen_statistics_kernel<<<static_cast<unsigned>(ceil_div(shape.channels, 128)), 128, 0, on>>>(
        shape.channels, running, statistics);
  } else {
    statistics_kernel<<<static_cast<unsigned>(ceil_div(shape.channels, 32)), dim3(32, 32), 0, on>>>(
        walk, partial, running, statistics);
  }
  return launched();
}

const char* conv_normalise(const ConvShape& shape, const void* y, const float* statistics,
                           const ConvNorm& norm, void* out, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (shape.bf16) {
    launch_normalise<Bf16>(rows_of(shape), y, statistics, norm, out, on);
  } else {
    launch_normalise<float>(rows_of(shape), y, statistics, norm, out, on);
  }
  return launched();
}

const char* conv_backward(const ConvShape& shape, const void* dout, const void* z, const void* y,
                          const std::int64_t* lengths, const float* weight, const float* statistics,
                          const ConvNorm& norm, void* dz, float* dweight, float* dnorm, float* means,
                          float* partial, void* stream) {
  const auto run = [&]<class T>(const T*) {
    launch_backward<T>(shape, static_cast<const T*>(dout), static_cast<const T*>(z), static_cast<const T*>(y),
                       lengths, weight, statistics, norm, static_cast<T*>(dz), dweight, dnorm, means, partial,
                       static_cast<cudaStream_t>(stream));
  };
  if (shape.bf16) {
    run(static_cast<const Bf16*>(nullptr));
  } else {
    run(static_cast<const float*>(nullptr));
  }
  return launched();
}

}  // namespace octavo_train::cuda
