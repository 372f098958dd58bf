// See mel.h.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/mel.h"

#include "train/data/mix.h"
#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/vectors.cuh"

#include <algorithm>

namespace octavo_train::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostShared = kMostMelShared;
constexpr std::int64_t kMostFrames = 16;  // frames per block
constexpr int kRows = kMelRows;

std::int64_t frames_of_block(const MelShape& shape) {
  const std::int64_t floats = kMostShared / static_cast<std::int64_t>(sizeof(float));
  const std::int64_t more = (floats - shape.size - 1) / shape.hop;  // besides the first
  return std::min(kMostFrames, more + 1);
}
std::int64_t shared_floats(const MelShape& shape) {
  return (frames_of_block(shape) - 1) * shape.hop + shape.size + 1;
}

// A block computes some frames of a clip. The frames overlap; the block reads and dithers each sample once.
__global__ void __launch_bounds__(kThreads)
    frames_kernel(MelShape shape, MelFrames work, int block_frames, int count, float* out) {
  extern __shared__ float dithered[];  // begins at the sample before the first frame
  const std::int64_t clip = blockIdx.y, first = std::int64_t{blockIdx.x} * block_frames;
  const std::int64_t before = first * shape.hop - shape.size / 2 - 1;
  const std::int64_t length = work.lengths[clip];
  const std::uint64_t key =
      work.dither == 0.0F
          ? 0
          : noise_key(work.seed, work.step, static_cast<std::uint64_t>(work.draws[clip]), work.use);
  const float* audio = work.audio + clip * shape.samples;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const std::int64_t n = before + i;
    float x = 0.0F;
    if (n >= 0 && n < length) {
      x = audio[n];
      if (work.dither != 0.0F) x += work.dither * normal_noise(key, static_cast<std::uint64_t>(n));
    }
    dithered[i] = x;
  }
  __syncthreads();
  const int size = static_cast<int>(shape.size), hop = static_cast<int>(shape.hop);
  for (int t = 0; t < block_frames && first + t < shape.frames; ++t) {
    float* row = out + (clip * shape.frames + first + t) * shape.size;
    for (int j = threadIdx.x; j < size; j += kThreads) {
      const int i = t * hop + j + 1;
      const float x = before + i < length ? dithered[i] - work.preemphasis * dithered[i - 1] : 0.0F;
      row[j] = x * work.window[j];
    }
  }
}

// A warp computes the bands of a frame.
__global__ void __launch_bounds__(32 * kRows)
    bands_kernel(MelShape shape, const float2* spectrum, MelFilters filters, float guard, float* out) {
  extern __shared__ float powers[];
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.y;
  if (row >= shape.batch * shape.frames) return;
  const int bins = static_cast<int>(shape.bins()), bands = static_cast<int>(shape.bands);
  float* power = powers + threadIdx.y * bins;
  for (int k = threadIdx.x; k < bins; k += 32) {
    const float2 z = spectrum[row * bins + k];
    power[k] = z.x * z.x + z.y * z.y;
  }
  __syncwarp();
  for (int band = threadIdx.x; band < bands; band += 32) {
    const float* from = power + filters.starts[band];
    float sum = 0.0F;
    for (int k = 0; k < static_cast<int>(filters.width); ++k)
      sum += filters.weights[k * bands + band] * from[k];
    out[row * bands + band] = logf(sum + guard);
  }
}

// A block normalizes 32 bands of a clip, each in a column of threads.
__global__ void __launch_bounds__(1024)
    normalize_kernel(MelShape shape, const std::int64_t* lengths, float least_deviation, float* x) {
  const std::int64_t clip = blockIdx.y, band = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  const int frames = static_cast<int>(shape.frames);
  const int length = within(lengths[clip] / shape.hop, frames);
  const bool real = band < shape.bands;
  float* column = x + clip * shape.frames * shape.bands + band;
  double sum = 0.0;
  for (int t = threadIdx.y; real && t < length; t += 32) sum += column[t * shape.bands];
  const auto mean = static_cast<float>(column_total(sum) / max(length, 1));
  double squares = 0.0;
  for (int t = threadIdx.y; real && t < length; t += 32) {
    const double centred = column[t * shape.bands] - mean;
    squares += centred * centred;
  }
  // The divisor is at least 1, because a clip of one frame has no standard deviation.
  const auto deviation = static_cast<float>(sqrt(column_total(squares) / max(length - 1, 1)));
  for (int t = threadIdx.y; real && t < frames; t += 32)
    column[t * shape.bands] =
        t < length ? (column[t * shape.bands] - mean) / (deviation + least_deviation) : 0.0F;
}

}  // namespace

const char* mel_frames(const MelShape& shape, const MelFrames& work, float* frames, void* stream) {
  const std::int64_t each = frames_of_block(shape), count = shared_floats(shape);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.frames, each)), static_cast<unsigned>(shape.batch));
  frames_kernel<<<grid, kThreads, static_cast<std::size_t>(count) * sizeof(float),
                  static_cast<cudaStream_t>(stream)>>>(shape, work, static_cast<int>(each),
                                                       static_cast<int>(count), frames);
  return launched();
}

const char* mel_bands(const MelShape& shape, const void* spectrum, const MelFilters& filters, float guard,
                      float* out, void* stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(shape.batch * shape.frames, kRows));
  const std::size_t bytes = static_cast<std::size_t>(shape.bins() * kRows) * sizeof(float);
  bands_kernel<<<blocks, dim3(32, kRows), bytes, static_cast<cudaStream_t>(stream)>>>(
      shape, static_cast<const float2*>(spectrum), filters, guard, out);
  return launched();
}

const char* mel_normalize(const MelShape& shape, const std::int64_t* lengths, float least_deviation, float* x,
                          void* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.bands, 32)), static_cast<unsigned>(shape.batch));
  normalize_kernel<<<grid, dim3(32, 32), 0, static_cast<cudaStream_t>(stream)>>>(shape, lengths,
                                                                                 least_deviation, x);
  return launched();
}

}  // namespace octavo_train::cuda
