// Host functions that launch the kernels of train/nn/mel.h. The Fourier transform between the kernels is
// torch's. Every function enqueues its work on the stream and returns null, or CUDA's error message. All
// memory is on the device and contiguous.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train::cuda {

struct MelShape {
  std::int64_t batch, samples, frames;  // samples and frames of the longest clip
  std::int64_t size, hop;               // size of a frame, and distance between frames, in samples
  std::int64_t bands;

  [[nodiscard]] constexpr std::int64_t bins() const { return size / 2 + 1; }
};
inline constexpr std::int64_t kMostMelShared = 48 << 10;  // bytes of shared memory per block
inline constexpr int kMelRows = 8;                        // frames per block of mel_bands(): one per warp
// Returns true if the shape fits the shared memory of a block of either kernel, and the size of a grid.
constexpr bool mel_fits(const MelShape& shape) {
  const std::int64_t floats = kMostMelShared / static_cast<std::int64_t>(sizeof(float));
  return shape.size + 1 <= floats && shape.bins() * kMelRows <= floats && shape.batch <= 65535;
}

// Arguments of mel_frames(): dither, pre-emphasis and window.
struct MelFrames {
  const float* audio;           // [batch, samples]
  const std::int64_t* lengths;  // [batch], in samples
  const float* window;          // [size]
  float preemphasis;
  float dither;  // 0: the fields below are not read
  const std::int64_t* draws;
  std::uint64_t seed, step, use;  // arguments of noise_key()
};
// Writes `frames`, [batch * frames, size].
const char* mel_frames(const MelShape& shape, const MelFrames& work, float* frames, void* stream);

// The filters without their zeros: weights[k, b] is the weight of band b for the bin starts[b] + k.
struct MelFilters {
  const float* weights;  // [width, bands]
  const std::int32_t* starts;
  std::int64_t width;
};
// Writes the logarithms of the bands, [batch, frames, bands], of a spectrum of complex numbers [batch *
// frames, bins].
const char* mel_bands(const MelShape& shape, const void* spectrum, const MelFilters& filters, float guard,
                      float* out, void* stream);

// Normalizes each clip's bands in place to mean 0 and standard deviation 1, with zeros beyond the clip's end.
const char* mel_normalize(const MelShape& shape, const std::int64_t* lengths, float least_deviation, float* x,
                          void* stream);

}  // namespace octavo_train::cuda
