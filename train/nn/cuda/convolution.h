// The kernels of conv_module as the host sees them. Every function queues its work on the stream and returns
// null, or what CUDA says is wrong. All memory is on the device, contiguous and aligned to sixteen bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"

#include <algorithm>
#include <cstdint>

namespace octavo::train::cuda {

inline constexpr int kConvWidth = 9;  // the one that the kernels are made for

// How work is cut; a function of the shape alone, because the order of sums follows from it.
struct ConvShape {
  bool bf16;  // else fp32: z, y, out and their gradients
  std::int64_t batch, frames;
  std::int64_t channels;  // a multiple of 8
  int run = 64;           // frames that a thread walks over

  [[nodiscard]] constexpr std::int64_t runs() const { return batch * ceil_div(frames, run); }
};
inline constexpr int kConvWarps = 4;       // runs of a block
inline constexpr int kConvBlockRows = 64;  // of a block that passes over rows
// fp32 values that hold the partial sums of any of the functions.
constexpr std::int64_t conv_partial_size(const ConvShape& shape) {
  return shape.channels *
         std::max({2 * shape.runs(), 2 * ceil_div(shape.batch * shape.frames, kConvBlockRows),
                   ceil_div(shape.runs(), kConvWarps) * kConvWidth});
}

// Everything per channel is fp32 [channels]; `statistics` is the mean, then 1 / sqrt(variance + eps).
struct ConvNorm {
  const float *weight, *bias;
  float *running_mean, *running_var;
  std::int64_t* batches;  // may be null
  double momentum, eps;
  bool frozen;  // statistics are the running ones, which stay
};

// y = depthwise(mask(GLU z)) and the statistics, with the running ones brought up to date unless frozen.
const char* conv_mix(const ConvShape& shape, const void* z, const std::int64_t* lengths, const float* weight,
                     const ConvNorm& norm, void* y, float* statistics, float* partial, void* stream);
// out = SiLU of y normalised.
const char* conv_normalise(const ConvShape& shape, const void* y, const float* statistics,
                           const ConvNorm& norm, void* out, void* stream);
// The gradients of z, the depthwise weight [channels, width] and the norm: `dnorm` is [2, channels], its bias
// and then its weight. `means` is [2, channels] of scratch.
const char* conv_backward(const ConvShape& shape, const void* dout, const void* z, const void* y,
                          const std::int64_t* lengths, const float* weight, const float* statistics,
                          const ConvNorm& norm, void* dz, float* dweight, float* dnorm, float* means,
                          float* partial, void* stream);

}  // namespace octavo::train::cuda
