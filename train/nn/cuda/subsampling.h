// The kernels of the stem (nn/subsampling.h) as the host sees them; the products between them are torch's.
// Every function queues its work on the stream and returns null, or what CUDA says is wrong. All memory is on
// the device, contiguous and aligned to sixteen bytes.
//
// Level 0 are the features, and level n has half the frames and bands of level n - 1, rounded up. Level 1, by
// far the largest, is never in memory: it is computed where it is read. Activations are [batch, frames,
// bands, channels]. Parameters and their gradients are fp32, [9, channels] or [channels].
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/ceil_div.h"

#include <algorithm>
#include <cstdint>

namespace octavo::train::cuda {

inline constexpr std::int64_t kMostBands = 320;

struct StemShape {
  bool bf16;                          // else fp32: activations and their gradients
  std::int64_t batch, frames, bands;  // of the features; at most kMostBands
  std::int64_t channels;              // a multiple of 8

  static constexpr std::int64_t halved(std::int64_t count, int times) {
    return times == 0 ? count : halved((count + 1) / 2, times - 1);
  }
  [[nodiscard]] constexpr std::int64_t frames_at(int level) const { return halved(frames, level); }
  [[nodiscard]] constexpr std::int64_t bands_at(int level) const { return halved(bands, level); }
  // Positions of a level.
  [[nodiscard]] constexpr std::int64_t rows_at(int level) const {
    return batch * frames_at(level) * bands_at(level);
  }
};
// fp32 values that hold the partial sums of either backward function.
inline constexpr int kStemRun = 8;  // frames that a thread walks over
inline constexpr int kTaps = 9;     // of a kernel of 3 x 3
inline constexpr int kFirstGrads = 2 * (kTaps + 1), kSecondGrads = kTaps + 1;  // of a channel
constexpr std::int64_t stem_parts(const StemShape& shape, int level) {
  return shape.batch * ceil_div(shape.frames_at(level), kStemRun);
}
constexpr std::int64_t stem_partial_size(const StemShape& shape) {
  return shape.channels * std::max(stem_parts(shape, 2) * kFirstGrads, stem_parts(shape, 3) * kSecondGrads);
}

// The first convolution with its ReLU, and the depthwise one behind it.
struct StemFirst {
  const void* features;         // [batch, frames, bands]
  const std::int64_t* lengths;  // [batch], in frames of the features
  const float *first, *first_bias, *depthwise, *depthwise_bias;
};
// y of level 2, with zeros beyond a clip's end.
const char* stem_first(const StemShape& shape, const StemFirst& work, void* y, void* stream);
// `grads` is [20, channels]: those of first, first_bias, depthwise and depthwise_bias, from y's.
const char* stem_first_backward(const StemShape& shape, const StemFirst& work, const void* dy, float* grads,
                                float* partial, void* stream);

// The depthwise convolution of ReLU(z), z of level 2.
struct StemSecond {
  const void* z;
  const std::int64_t* lengths;
  const float *depthwise, *depthwise_bias;
};
// y of level 3.
const char* stem_second(const StemShape& shape, const StemSecond& work, void* y, void* stream);
// The gradients of z, and of depthwise and depthwise_bias, [10, channels], from y's.
const char* stem_second_backward(const StemShape& shape, const StemSecond& work, const void* dy, void* dz,
                                 float* grads, float* partial, void* stream);

// out = ReLU(z) of level 3 as [batch, frames, channels, bands], with zeros beyond a clip's end; and z's
// gradient from out and its gradient.
const char* stem_last(const StemShape& shape, const std::int64_t* lengths, const void* z, void* out,
                      void* stream);
const char* stem_last_backward(const StemShape& shape, const void* out, const void* dout, void* dz,
                               void* stream);

}  // namespace octavo::train::cuda
