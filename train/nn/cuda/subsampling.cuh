// Shared code of the stem's kernels. A thread owns two neighbouring channels and processes the bands of a
// frame in order. A block processes a run of frames of one clip.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/subsampling.h"
#include "train/nn/cuda/vectors.cuh"

namespace octavo_train::cuda {

constexpr int kStemThreads = 128, kStemOwn = 2;

struct Stem {
  const std::int64_t* lengths;
  int channels, runs;
  int frames[4], bands[4];
};

// `level` is the level whose frames are divided into runs.
inline Stem stem_of(const StemShape& shape, const std::int64_t* lengths, int level) {
  Stem out{lengths,
           static_cast<int>(shape.channels),
           static_cast<int>(ceil_div(shape.frames_at(level), kStemRun)),
           {},
           {}};
  for (int i = 0; i < 4; ++i) {
    out.frames[i] = static_cast<int>(shape.frames_at(i));
    out.bands[i] = static_cast<int>(shape.bands_at(i));
  }
  return out;
}
inline dim3 stem_grid(const StemShape& shape, const Stem& stem) {
  return {static_cast<unsigned>(shape.batch * stem.runs),
          static_cast<unsigned>(ceil_div(shape.channels, kStemThreads * kStemOwn))};
}

// A thread's part of the work.
struct StemPlace {
  int clip, begin, channel;  // begin: the run's first frame
  int lengths[4];            // real frames at each level

  explicit __device__ StemPlace(const Stem& stem)
      : clip(static_cast<int>(blockIdx.x) / stem.runs),
        begin((static_cast<int>(blockIdx.x) - clip * stem.runs) * kStemRun),
        channel(static_cast<int>(blockIdx.y * kStemThreads + threadIdx.x) * kStemOwn) {
    lengths[0] = within(stem.lengths[clip], stem.frames[0]);
#pragma unroll
    for (int i = 1; i < 4; ++i) lengths[i] = (lengths[i - 1] + 1) / 2;
  }
  // Returns the index of the first band of a frame of a level, at the thread's channels.
  [[nodiscard]] __device__ std::int64_t row(const Stem& stem, int level, int frame) const {
    return ((std::int64_t{clip} * stem.frames[level] + frame) * stem.bands[level]) * stem.channels + channel;
  }
};

using Pair = float[kStemOwn];

template <int kCount>
__device__ inline void load_pairs(const float* from, int channels, int channel, Pair (&out)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) widen(load<float, kStemOwn>(from + i * channels + channel), out[i]);
}
// Stores x to the rows from `first` on of a block's [20 or 10, channels].
template <int kCount>
__device__ inline void store_pairs(float* to, int first, int channels, int channel, Pair (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) store<kStemOwn>(to + (first + i) * channels + channel, x[i]);
}

// Loads rows [from, from + rows) of a clip's features as fp32, `width` columns, with zeros outside the
// features and after the clip's end.
template <class T>
__device__ inline void load_features(const Stem& stem, const StemPlace& place, const T* features, int from,
                                     int rows, int width, float* tile) {
  for (int i = threadIdx.x; i < rows * width; i += kStemThreads) {
    const int row = i / width, column = i - row * width, frame = from + row;
    const bool real = frame >= 0 && frame < place.lengths[0] && column < stem.bands[0];
    tile[i] =
        real ? static_cast<float>(
                   features[(std::int64_t{place.clip} * stem.frames[0] + frame) * stem.bands[0] + column])
             : 0.0F;
  }
  __syncthreads();
}

}  // namespace octavo_train::cuda
