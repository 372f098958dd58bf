// Host functions that launch the kernels of train/nn/residual.h. Every function enqueues its work on the
// stream and returns null, or CUDA's error message. All memory is on the device, contiguous and aligned to 16
// bytes. With dropout, the elements of a sample are contiguous; their number is below 2^33 and a multiple of
// 8.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"
#include "train/nn/cuda/drop_call.h"

#include <algorithm>
#include <cstdint>

namespace octavo_train::cuda {

inline constexpr std::int64_t kMostNormed = 1024;  // channels

struct NormShape {
  bool bf16;  // else fp32: activations and their gradients
  std::int64_t rows, rows_of_sample;
  std::int64_t channels;  // a multiple of 8, at most kMostNormed
};
// norm_partial_size() is the number of fp32 values that hold the partial sums of norm_backward().
inline constexpr int kNormWarps = 4;  // rows per block
inline constexpr std::int64_t kMostNormBlocks =
    396;  // in the backward pass: three per multiprocessor of an H200
constexpr std::int64_t norm_backward_blocks(const NormShape& shape) {
  return std::min(kMostNormBlocks, ceil_div(shape.rows, kNormWarps));
}
constexpr std::int64_t norm_partial_size(const NormShape& shape) {
  return norm_backward_blocks(shape) * 2 * shape.channels;
}

// Arguments of norm_forward(), which computes s = x + scale * drop(y) and out = LayerNorm(s as it is stored).
// Without y, s is x and is not written. `statistics` is fp32 [rows, 2]: mean and 1 / sqrt(variance + eps). If
// it is null, they are not stored.
struct NormForward {
  const void *x, *y;
  double scale;
  DropoutArgs drop;
  const float *weight, *bias;
  double eps;
  void *s, *out;
  float* statistics;
};
const char* norm_forward(const NormShape& shape, const NormForward& work, void* stream);

// Arguments of norm_backward(), which computes dx = ds + the gradient of s from dout, and dy = scale *
// drop(dx). `ds` and `dy` may be null. `dnorm` is [2, channels]: the gradients of the norm's bias and then
// its weight.
struct NormBackward {
  const void *ds, *dout, *s;
  double scale;
  DropoutArgs drop;
  const float *weight, *statistics;
  void *dx, *dy;
  float *dnorm, *partial;
};
const char* norm_backward(const NormShape& shape, const NormBackward& work, void* stream);

// Returns true if the current device can run the kernels of this folder, which are all compiled for the same
// GPUs.
bool has_code();

// Computes to = drop(SiLU(x)) or, if dout is not null, the gradient of x. `inner` is the number of elements
// of a sample.
const char* silu_dropout(bool bf16, std::int64_t numel, std::int64_t inner, const void* x, const void* dout,
                         const DropoutArgs& drop, void* to, void* stream);

}  // namespace octavo_train::cuda
