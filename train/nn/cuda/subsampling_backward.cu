// The stem's backward pass. Each step along the bands has a cell: two by two points of the finer level, which
// only this step processes, and the gradients of the four points of the coarser level that used any of them.
// Every pair of points that a convolution kernel connects is in exactly one cell. Blocks compute partial sums
// in fp32, which are added up in double in a fixed order.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/subsampling.cuh"
#include "train/nn/cuda/sums.cuh"

#include <algorithm>

namespace octavo_train::cuda {
namespace {

// Frames of features that a run of level 2 owns, and one frame before them.
constexpr int kOwned = 4 * kStemRun + 1;

// The gradients that a cell needs: those of its frame and the next, at its band and the next.
template <class T>
class Coarse {
 public:
  __device__ Coarse(const Stem& stem, const StemPlace& place, int level, int frame, const T* dy)
      : bands_(stem.bands[level]), channels_(stem.channels) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      real_[row] = frame + row < stem.frames[level];
      from_[row] = dy + place.row(stem, level, real_[row] ? frame + row : frame);
      get(row, 0);
    }
  }
  // Loads the next band; the band that was next becomes the cell's band.
  __device__ void step(int band) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int c = 0; c < kStemOwn; ++c) at[row][0][c] = at[row][1][c];
      get(row, band + 1);
    }
  }
  Pair at[2][2];

 private:
  __device__ void get(int row, int band) {
    Raw<T, kStemOwn> raw = {};
    if (real_[row] && band < bands_) raw = load<T, kStemOwn>(from_[row] + std::int64_t{band} * channels_);
    widen(raw, at[row][1]);
  }
  int bands_, channels_;
  bool real_[2];
  const T* from_[2];
};

// Calls visit(tap, row, column) for every point (row, column) of the coarser level that used the cell's point
// (p, q) through that tap of the kernel.
template <class Visit>
__device__ inline void taps_of(int p, int q, Visit&& visit) {
#pragma unroll
  for (int row = 0; row <= p; ++row) {
#pragma unroll
    for (int column = 0; column <= q; ++column)
      visit(3 * (1 + p - 2 * row) + 1 + q - 2 * column, row, column);
  }
}

template <class T>
__global__ void __launch_bounds__(kStemThreads, 3)
    first_backward_kernel(const __grid_constant__ Stem stem, const __grid_constant__ StemFirst work,
                          const T* dy, float* partial) {
  extern __shared__ float4 shared[];
  auto* tile = reinterpret_cast<float*>(shared);
  const StemPlace place(stem);
  const int width = 4 * stem.bands[2], channels = stem.channels;
  load_features(stem, place, static_cast<const T*>(work.features), 4 * place.begin - 1, kOwned, width, tile);
  if (place.channel >= channels) return;
  Pair first[kTaps], deep[kTaps], bias[1];
  load_pairs(work.first, channels, place.channel, first);
  load_pairs(work.depthwise, channels, place.channel, deep);
  load_pairs(work.first_bias, channels, place.channel, bias);
  Pair dfirst[kTaps] = {}, ddeep[kTaps] = {}, dbias[1] = {}, ddeep_bias[1] = {};
  const int end = min(place.begin + kStemRun, place.lengths[2]);  // beyond a clip's end dy is zero
#pragma unroll 1
  for (int frame = place.begin; frame < end; ++frame) {
    Coarse<T> coarse(stem, place, 2, frame, dy);
    float x[5][5] = {};  // columns 4 band - 1 and after of the features
    const float* at = tile + 4 * (frame - place.begin) * width;
    const bool real[2] = {2 * frame < place.lengths[1], 2 * frame + 1 < place.lengths[1]};
#pragma unroll 1
    for (int band = 0; band < stem.bands[2]; ++band) {
      coarse.step(band);
#pragma unroll
      for (int r = 0; r < 5; ++r) {
        const float4 four = *reinterpret_cast<const float4*>(at + r * width + 4 * band);
        x[r][0] = x[r][4];
        x[r][1] = four.x;
        x[r][2] = four.y;
        x[r][3] = four.z;
        x[r][4] = four.w;
      }
      const bool inside[2] = {true, 2 * band + 1 < stem.bands[1]};
#pragma unroll
      for (int c = 0; c < kStemOwn; ++c) {
        ddeep_bias[0][c] += coarse.at[0][0][c];
#pragma unroll
        for (int point = 0; point < 4; ++point) {
          const int p = point / 2, q = point % 2;
          float a = bias[0][c], da = 0.0F;
#pragma unroll
          for (int k = 0; k < kTaps; ++k) a += first[k][c] * x[2 * p + k / 3][2 * q + k % 3];
          const bool on = real[p] && inside[q] && a > 0.0F;
          if (!on) a = 0.0F;
          taps_of(p, q, [&](int tap, int row, int column) {
            ddeep[tap][c] += a * coarse.at[row][column][c];
            da += deep[tap][c] * coarse.at[row][column][c];
          });
          if (!on) da = 0.0F;
          dbias[0][c] += da;
#pragma unroll
          for (int k = 0; k < kTaps; ++k) dfirst[k][c] += da * x[2 * p + k / 3][2 * q + k % 3];
        }
      }
    }
  }
  float* to = partial + std::int64_t{blockIdx.x} * kFirstGrads * channels;
  store_pairs(to, 0, channels, place.channel, dfirst);
  store_pairs(to, kTaps, channels, place.channel, dbias);
  store_pairs(to, kTaps + 1, channels, place.channel, ddeep);
  store_pairs(to, 2 * kTaps + 1, channels, place.channel, ddeep_bias);
}

template <class T>
__global__ void __launch_bounds__(kStemThreads)
    second_backward_kernel(const __grid_constant__ Stem stem, const __grid_constant__ StemSecond work,
                           const T* dy, T* dz, float* partial) {
  const StemPlace place(stem);
  const int channels = stem.channels;
  if (place.channel >= channels) return;
  Pair deep[kTaps], ddeep[kTaps] = {}, dbias[1] = {};
  load_pairs(work.depthwise, channels, place.channel, deep);
  const int end = min(place.begin + kStemRun, stem.frames[3]);
#pragma unroll 1
  for (int frame = place.begin; frame < end; ++frame) {
    Coarse<T> coarse(stem, place, 3, frame, dy);
    const std::int64_t row = place.row(stem, 2, 2 * frame);
    const int pitch = stem.bands[2] * channels;  // from a frame of level 2 to the next
    const bool exists[2] = {true, 2 * frame + 1 < stem.frames[2]};
    const bool real[2] = {2 * frame < place.lengths[2], 2 * frame + 1 < place.lengths[2]};
#pragma unroll 2
    for (int band = 0; band < stem.bands[3]; ++band) {
      const bool inside[2] = {true, 2 * band + 1 < stem.bands[2]};
      Raw<T, kStemOwn> raw[4];
#pragma unroll
      for (int point = 0; point < 4; ++point) {
        const int p = point / 2, q = point % 2;
        raw[point] = {};
        if (real[p] && inside[q])
          raw[point] =
              load<T, kStemOwn>(static_cast<const T*>(work.z) + row + p * pitch + (2 * band + q) * channels);
      }
      coarse.step(band);
#pragma unroll
      for (int c = 0; c < kStemOwn; ++c) dbias[0][c] += coarse.at[0][0][c];
#pragma unroll
      for (int point = 0; point < 4; ++point) {
        const int p = point / 2, q = point % 2;
        float z[kStemOwn];
        widen(raw[point], z);
#pragma unroll
        for (int c = 0; c < kStemOwn; ++c) {
          const float a = fmaxf(z[c], 0.0F);  // zero also where the clip has ended
          float da = 0.0F;
          taps_of(p, q, [&](int tap, int r, int column) {
            ddeep[tap][c] += a * coarse.at[r][column][c];
            da += deep[tap][c] * coarse.at[r][column][c];
          });
          z[c] = a > 0.0F ? da : 0.0F;
        }
        if (exists[p] && inside[q]) store<kStemOwn>(dz + row + p * pitch + (2 * band + q) * channels, z);
      }
    }
  }
  float* to = partial + std::int64_t{blockIdx.x} * kSecondGrads * channels;
  store_pairs(to, 0, channels, place.channel, ddeep);
  store_pairs(to, kTaps, channels, place.channel, dbias);
}

}  // namespace

const char* stem_first_backward(const StemShape& shape, const StemFirst& work, const void* dy, float* grads,
                                float* partial, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const Stem stem = stem_of(shape, work.lengths, 2);
  const std::size_t bytes = sizeof(float) * 4 * static_cast<std::size_t>(stem.bands[2]) * kOwned;
  if (shape.bf16)
    first_backward_kernel<<<stem_grid(shape, stem), kStemThreads, bytes, on>>>(
        stem, work, static_cast<const Bf16*>(dy), partial);
  else
    first_backward_kernel<<<stem_grid(shape, stem), kStemThreads, bytes, on>>>(
        stem, work, static_cast<const float*>(dy), partial);
  column_sums(partial, stem_parts(shape, 2), kFirstGrads * shape.channels, grads, nullptr, 0.0, on);
  return launched();
}

const char* stem_second_backward(const StemShape& shape, const StemSecond& work, const void* dy, void* dz,
                                 float* grads, float* partial, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const Stem stem = stem_of(shape, work.lengths, 3);
  if (shape.bf16)
    second_backward_kernel<<<stem_grid(shape, stem), kStemThreads, 0, on>>>(
        stem, work, static_cast<const Bf16*>(dy), static_cast<Bf16*>(dz), partial);
  else
    second_backward_kernel<<<stem_grid(shape, stem), kStemThreads, 0, on>>>(
        stem, work, static_cast<const float*>(dy), static_cast<float*>(dz), partial);
  column_sums(partial, stem_parts(shape, 3), kSecondGrads * shape.channels, grads, nullptr, 0.0, on);
  return launched();
}

}  // namespace octavo_train::cuda
