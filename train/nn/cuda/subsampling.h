// Host functions that launch the kernels of the stem (train/nn/subsampling.h). The matmuls between the
// kernels are torch's. Every function enqueues its work on the stream and returns null, or CUDA's error
// message. All memory is on the device, contiguous and aligned to 16 bytes.
//
// Level 0 is the features, and level n has half the frames and bands of level n - 1, rounded up. Level 1, by
// far the largest, is never in memory: kernels compute it where they read it. Activations are [batch, frames,
// bands, channels]. Parameters and their gradients are fp32, [9, channels] or [channels].
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"

#include <algorithm>
#include <cstdint>

namespace octavo_train::cuda {

inline constexpr std::int64_t kMostBands = 320;

struct StemShape {
  bool bf16;                          // else fp32: activations and their gradients
  std::int64_t batch, frames, bands;  // of the features; bands is at most kMostBands
  std::int64_t channels;              // a multiple of 8

  static constexpr std::int64_t halved(std::int64_t count, int times) {
    return times == 0 ? count : halved((count + 1) / 2, times - 1);
  }
  [[nodiscard]] constexpr std::int64_t frames_at(int level) const { return halved(frames, level); }
  [[nodiscard]] constexpr std::int64_t bands_at(int level) const { return halved(bands, level); }
  // Returns the number of positions of a level.
  [[nodiscard]] constexpr std::int64_t rows_at(int level) const {
    return batch * frames_at(level) * bands_at(level);
  }
};
// stem_partial_size() is the number of fp32 values that hold the partial sums of either backward function.
inline constexpr int kStemRun = 8;  // consecutive frames that a thread processes
inline constexpr int kTaps = 9;     // weights of a 3 x 3 kernel
inline constexpr int kFirstGrads = 2 * (kTaps + 1), kSecondGrads = kTaps + 1;  // values per channel
constexpr std::int64_t stem_parts(const StemShape& shape, int level) {
  return shape.batch * ceil_div(shape.frames_at(level), kStemRun);
}
constexpr std::int64_t stem_partial_size(const StemShape& shape) {
  return shape.channels * std::max(stem_parts(shape, 2) * kFirstGrads, stem_parts(shape, 3) * kSecondGrads);
}

// Arguments of stem_first(): the first convolution with its ReLU, and the depthwise convolution after it.
struct StemFirst {
  const void* features;         // [batch, frames, bands]
  const std::int64_t* lengths;  // [batch], in frames of the features
  const float *first, *first_bias, *depthwise, *depthwise_bias;
};
// Writes y of level 2, with zeros beyond a clip's end.
const char* stem_first(const StemShape& shape, const StemFirst& work, void* y, void* stream);
// Computes `grads` [20, channels] from the gradient of y: the gradients of first, first_bias, depthwise and
// depthwise_bias.
const char* stem_first_backward(const StemShape& shape, const StemFirst& work, const void* dy, float* grads,
                                float* partial, void* stream);

// Arguments of stem_second(): the depthwise convolution of ReLU(z), where z is of level 2.
struct StemSecond {
  const void* z;
  const std::int64_t* lengths;
  const float *depthwise, *depthwise_bias;
};
// Writes y of level 3.
const char* stem_second(const StemShape& shape, const StemSecond& work, void* y, void* stream);
// Computes the gradients of z, and of depthwise and depthwise_bias as [10, channels], from the gradient of y.
const char* stem_second_backward(const StemShape& shape, const StemSecond& work, const void* dy, void* dz,
                                 float* grads, float* partial, void* stream);

// stem_last() writes out = ReLU(z) of level 3 as [batch, frames, channels, bands], with zeros beyond a clip's
// end. stem_last_backward() computes the gradient of z from out and its gradient.
const char* stem_last(const StemShape& shape, const std::int64_t* lengths, const void* z, void* out,
                      void* stream);
const char* stem_last_backward(const StemShape& shape, const void* out, const void* dout, void* dz,
                               void* stream);

}  // namespace octavo_train::cuda
