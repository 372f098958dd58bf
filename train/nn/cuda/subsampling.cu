// The stem's forward pass. The first convolution is limited by arithmetic, not by memory. Therefore a step
// along the bands computes two columns of the first convolution and keeps the third, and reads 28 new
// features, the same for every lane, with seven loads.
// SPDX-License-Identifier: MIT
#include "train/nn/cuda/launch.cuh"
#include "train/nn/cuda/subsampling.cuh"

namespace octavo_train::cuda {
namespace {

// Frames of features that a run of level 2 reads: each frame reads seven, and the next frame's seven begin
// four later.
constexpr int kSeen = 4 * kStemRun + 3;

template <class T>
__global__ void __launch_bounds__(kStemThreads)
    first_kernel(const __grid_constant__ Stem stem, const __grid_constant__ StemFirst work, T* y) {
  extern __shared__ float4 shared[];
  auto* tile = reinterpret_cast<float*>(shared);
  const StemPlace place(stem);
  const int width = 4 * stem.bands[2], channels = stem.channels;
  load_features(stem, place, static_cast<const T*>(work.features), 4 * place.begin - 3, kSeen, width, tile);
  if (place.channel >= channels) return;
  Pair first[kTaps], deep[kTaps], first_bias[1], deep_bias[1];
  load_pairs(work.first, channels, place.channel, first);
  load_pairs(work.depthwise, channels, place.channel, deep);
  load_pairs(work.first_bias, channels, place.channel, first_bias);
  load_pairs(work.depthwise_bias, channels, place.channel, deep_bias);
  const int end = min(place.begin + kStemRun, stem.frames[2]);
#pragma unroll 1
  for (int frame = place.begin; frame < end; ++frame) {
    T* to = y + place.row(stem, 2, frame);
    if (frame >= place.lengths[2]) {
      for (int band = 0; band < stem.bands[2]; ++band) {
        float zeros[kStemOwn] = {};
        store<kStemOwn>(to + band * channels, zeros);
      }
      continue;
    }
    bool real[3];  // rows of level 1
#pragma unroll
    for (int i = 0; i < 3; ++i) real[i] = 2 * frame - 1 + i >= 0 && 2 * frame - 1 + i < place.lengths[1];
    Pair before[3] = {};  // column 2 band - 1 of level 1
    float x[7][5] = {};   // columns 4 band - 1 and after of the features
    const float* at = tile + 4 * (frame - place.begin) * width;
#pragma unroll 1
    for (int band = 0; band < stem.bands[2]; ++band) {
#pragma unroll
      for (int r = 0; r < 7; ++r) {
        const float4 four = *reinterpret_cast<const float4*>(at + r * width + 4 * band);
        x[r][0] = x[r][4];
        x[r][1] = four.x;
        x[r][2] = four.y;
        x[r][3] = four.z;
        x[r][4] = four.w;
      }
      const bool inside = 2 * band + 1 < stem.bands[1];
      float sum[kStemOwn];
#pragma unroll
      for (int c = 0; c < kStemOwn; ++c) {
        sum[c] = deep_bias[0][c];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          sum[c] += deep[3 * i][c] * before[i][c];
#pragma unroll
          for (int column = 0; column < 2; ++column) {
            float a = first_bias[0][c];
#pragma unroll
            for (int k = 0; k < kTaps; ++k) a += first[k][c] * x[2 * i + k / 3][2 * column + k % 3];
            a = real[i] && (column == 0 || inside) ? fmaxf(a, 0.0F) : 0.0F;
            sum[c] += deep[3 * i + 1 + column][c] * a;
            if (column == 1) before[i][c] = a;
          }
        }
      }
      store<kStemOwn>(to + band * channels, sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kStemThreads)
    second_kernel(const __grid_constant__ Stem stem, const __grid_constant__ StemSecond work, T* y) {
  const StemPlace place(stem);
  const int channels = stem.channels;
  if (place.channel >= channels) return;
  Pair deep[kTaps], bias[1];
  load_pairs(work.depthwise, channels, place.channel, deep);
  load_pairs(work.depthwise_bias, channels, place.channel, bias);
  const int end = min(place.begin + kStemRun, stem.frames[3]);
#pragma unroll 1
  for (int frame = place.begin; frame < end; ++frame) {
    const T* from[3];
    bool real[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int row = 2 * frame - 1 + i;
      real[i] = row >= 0 && row < place.lengths[2];
      from[i] = static_cast<const T*>(work.z) + place.row(stem, 2, real[i] ? row : 0);
    }
    T* to = y + place.row(stem, 3, frame);
    Pair before[3] = {};
#pragma unroll 2
    for (int band = 0; band < stem.bands[3]; ++band) {
      const bool inside = 2 * band + 1 < stem.bands[2];
      Raw<T, kStemOwn> raw[3][2];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        raw[i][0] = raw[i][1] = {};
        if (real[i]) raw[i][0] = load<T, kStemOwn>(from[i] + 2 * band * channels);
        if (real[i] && inside) raw[i][1] = load<T, kStemOwn>(from[i] + (2 * band + 1) * channels);
      }
      float sum[kStemOwn];
#pragma unroll
      for (int c = 0; c < kStemOwn; ++c) sum[c] = bias[0][c];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        float even[kStemOwn], odd[kStemOwn];
        widen(raw[i][0], even);
        widen(raw[i][1], odd);
#pragma unroll
        for (int c = 0; c < kStemOwn; ++c) {
          sum[c] += deep[3 * i][c] * before[i][c] + deep[3 * i + 1][c] * fmaxf(even[c], 0.0F);
          before[i][c] = fmaxf(odd[c], 0.0F);
          sum[c] += deep[3 * i + 2][c] * before[i][c];
        }
      }
      store<kStemOwn>(to + band * channels, sum);
    }
  }
}

// Transposes a frame between [bands, channels] and [channels, bands], some channels at a time. A block
// processes one frame.
constexpr int kTurnChannels = 64, kTurnThreads = 256;
constexpr int kMostTurned = static_cast<int>(StemShape::halved(kMostBands, 3));

template <class T, bool kBackward>
__global__ void __launch_bounds__(kTurnThreads)
    last_kernel(const __grid_constant__ Stem stem, const T* from, const T* out, T* to) {
  __shared__ float tile[kTurnChannels][kMostTurned + 1];
  const int bands = stem.bands[3], channels = stem.channels;
  const int clip = static_cast<int>(blockIdx.x) / stem.frames[3];
  const int frame = static_cast<int>(blockIdx.x) - clip * stem.frames[3];
  const std::int64_t base = std::int64_t{blockIdx.x} * bands * channels;
  bool real = true;
  if constexpr (!kBackward) {
    int length = within(stem.lengths[clip], stem.frames[0]);
    for (int i = 0; i < 3; ++i) length = (length + 1) / 2;
    real = frame < length;
  }
  for (int begin = 0; begin < channels; begin += kTurnChannels) {
    const int count = min(kTurnChannels, channels - begin);
    // `apart` visits the layout with neighbouring channels, `together` the layout with neighbouring bands.
    const auto apart = [&](auto&& visit) {
      for (int i = threadIdx.x; i < bands * kTurnChannels; i += kTurnThreads) {
        const int band = i / kTurnChannels, c = i % kTurnChannels;
        if (c < count) visit(tile[c][band], base + std::int64_t{band} * channels + begin + c);
      }
    };
    const auto together = [&](auto&& visit) {
      for (int i = threadIdx.x; i < bands * count; i += kTurnThreads)
        visit(tile[i / bands][i % bands], base + std::int64_t{begin} * bands + i);
    };
    if constexpr (kBackward) {
      together([&](float& cell, std::int64_t at) {
        cell = static_cast<float>(out[at]) > 0.0F ? static_cast<float>(from[at]) : 0.0F;
      });
      __syncthreads();
      apart([&](float cell, std::int64_t at) { to[at] = static_cast<T>(cell); });
    } else {
      apart([&](float& cell, std::int64_t at) {
        cell = real ? fmaxf(static_cast<float>(from[at]), 0.0F) : 0.0F;
      });
      __syncthreads();
      together([&](float cell, std::int64_t at) { to[at] = static_cast<T>(cell); });
    }
    __syncthreads();
  }
}

// Calls run(a null pointer to the activations' type).
template <class Run>
const char* with_type(const StemShape& shape, Run&& run) {
  if (shape.bf16)
    run(static_cast<Bf16*>(nullptr));
  else
    run(static_cast<float*>(nullptr));
  return launched();
}

unsigned last_blocks(const StemShape& shape) {
  return static_cast<unsigned>(shape.batch * shape.frames_at(3));
}

}  // namespace

const char* stem_first(const StemShape& shape, const StemFirst& work, void* y, void* stream) {
  const Stem stem = stem_of(shape, work.lengths, 2);
  const std::size_t bytes = sizeof(float) * 4 * static_cast<std::size_t>(stem.bands[2]) * kSeen;
  return with_type(shape, [&]<class T>(T*) {
    first_kernel<T><<<stem_grid(shape, stem), kStemThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
        stem, work, static_cast<T*>(y));
  });
}

const char* stem_second(const StemShape& shape, const StemSecond& work, void* y, void* stream) {
  const Stem stem = stem_of(shape, work.lengths, 3);
  return with_type(shape, [&]<class T>(T*) {
    second_kernel<T><<<stem_grid(shape, stem), kStemThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        stem, work, static_cast<T*>(y));
  });
}

const char* stem_last(const StemShape& shape, const std::int64_t* lengths, const void* z, void* out,
                      void* stream) {
  return with_type(shape, [&]<class T>(T*) {
    last_kernel<T, false><<<last_blocks(shape), kTurnThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        stem_of(shape, lengths, 3), static_cast<const T*>(z), nullptr, static_cast<T*>(out));
  });
}

const char* stem_last_backward(const StemShape& shape, const void* out, const void* dout, void* dz,
                               void* stream) {
  return with_type(shape, [&]<class T>(T*) {
    last_kernel<T, true><<<last_blocks(shape), kTurnThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        stem_of(shape, nullptr, 3), static_cast<const T*>(dout), static_cast<const T*>(out),
        static_cast<T*>(dz));
  });
}

}  // namespace octavo_train::cuda
