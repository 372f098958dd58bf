// Host functions that launch the kernels of conv_module(). Every function enqueues its work on the stream and
// returns null, or CUDA's error message. All memory is on the device, contiguous and aligned to 16 bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"

#include <algorithm>
#include <cstdint>

namespace octavo_train::cuda {

inline constexpr int kConvWidth = 9;  // the only width that the kernels support

// The shape, and how the work is divided. The division depends only on the shape, because it determines the
// order of sums.
struct ConvShape {
  bool bf16;  // else fp32: z, y, out and their gradients
  std::int64_t batch, frames;
  std::int64_t channels;  // a multiple of 8
  int run = 64;           // consecutive frames that a thread processes

  [[nodiscard]] constexpr std::int64_t runs() const { return batch * ceil_div(frames, run); }
};
inline constexpr int kConvWarps = 4;       // runs per block
inline constexpr int kConvBlockRows = 64;  // rows per block, in kernels that process rows
// Returns the number of fp32 values that hold the partial sums of any of the functions.
constexpr std::int64_t conv_partial_size(const ConvShape& shape) {
  return shape.channels *
         std::max({2 * shape.runs(), 2 * ceil_div(shape.batch * shape.frames, kConvBlockRows),
                   ceil_div(shape.runs(), kConvWarps) * kConvWidth});
}

// Pointers to values per channel are fp32 [channels]. `statistics` is the mean, then 1 / sqrt(variance +
// eps).
struct ConvNorm {
  const float *weight, *bias;
  float *running_mean, *running_var;
  std::int64_t* batches;  // may be null
  double momentum, eps;
  bool frozen;  // the running statistics are used, and not updated
};

// Computes y = depthwise(mask(GLU z)) and the statistics, and updates the running statistics unless frozen.
const char* conv_mix(const ConvShape& shape, const void* z, const std::int64_t* lengths, const float* weight,
                     const ConvNorm& norm, void* y, float* statistics, float* partial, void* stream);
// Computes out = SiLU(normalized y).
const char* conv_normalise(const ConvShape& shape, const void* y, const float* statistics,
                           const ConvNorm& norm, void* out, void* stream);
// Computes the gradients of z, the depthwise weight [channels, width] and the norm: `dnorm` is [2, channels],
// the gradients of the norm's bias and then its weight. `means` is scratch memory [2, channels].
const char* conv_backward(const ConvShape& shape, const void* dout, const void* z, const void* y,
                          const std::int64_t* lengths, const float* weight, const float* statistics,
                          const ConvNorm& norm, void* dz, float* dweight, float* dnorm, float* means,
                          float* partial, void* stream);

}  // namespace octavo_train::cuda
