// The kernels of nn/mel.h as the host sees them; the Fourier transform between them is torch's. Every
// function queues its work on the stream and returns null, or what CUDA says is wrong. All memory is on the
// device and contiguous.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::train::cuda {

struct MelShape {
  std::int64_t batch, samples, frames;  // of the longest clip
  std::int64_t size, hop;               // of a frame, in samples
  std::int64_t bands;

  [[nodiscard]] constexpr std::int64_t bins() const { return size / 2 + 1; }
};
inline constexpr std::int64_t kMostMelShared = 48 << 10;  // bytes of a block
inline constexpr int kMelRows = 8;  // frames of a block that makes bands: one for each warp
// Whether a frame fits: what a block of either kernel shares, and what the grids can count.
constexpr bool mel_fits(const MelShape& shape) {
  const std::int64_t floats = kMostMelShared / static_cast<std::int64_t>(sizeof(float));
  return shape.size + 1 <= floats && shape.bins() * kMelRows <= floats && shape.batch <= 65535;
}

// Dither, pre-emphasis and window.
struct MelFrames {
  const float* audio;           // [batch, samples]
  const std::int64_t* lengths;  // [batch], in samples
  const float* window;          // [size]
  float preemphasis;
  float dither;  // 0: the rest is not looked at
  const std::int64_t* draws;
  std::uint64_t seed, step, use;  // of noise_key
};
// frames: [batch * frames, size].
const char* mel_frames(const MelShape& shape, const MelFrames& work, float* frames, void* stream);

// The filters without what is zero: of band b, weights[k, b] belong to the bins from starts[b] on.
struct MelFilters {
  const float* weights;  // [width, bands]
  const std::int32_t* starts;
  std::int64_t width;
};
// Logarithms of the bands of a spectrum [batch * frames, bins], whose numbers are pairs: [batch, frames,
// bands].
const char* mel_bands(const MelShape& shape, const void* spectrum, const MelFilters& filters, float guard,
                      float* out, void* stream);

// In place: each clip's bands with mean 0 and deviation 1, and zeros beyond its end.
const char* mel_normalize(const MelShape& shape, const std::int64_t* lengths, float least_deviation, float* x,
                          void* stream);

}  // namespace octavo::train::cuda
