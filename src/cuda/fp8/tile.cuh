// The parts that the kernels of FP8 casts share. A block casts a tile of 128 x 128 elements, and a thread 8 x
// 8 of them, which it reads once. Rows are written directly and columns through shared memory, so that both
// are written in runs of 128 bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/fp8/cast.h"
#include "cuda/fp8/codes.cuh"
#include "cuda/runtime/vectors.cuh"
#include "formula/activation.h"
#include "formula/fp8_scale.h"
#include "fp8/tiles.h"

namespace octavo::cuda::fp8_tile {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTileSide = static_cast<int>(fp8::kTile);
constexpr int kSide = 8;                    // side of a thread's part
constexpr int kAcross = kTileSide / kSide;  // threads per row of the tile
constexpr unsigned kAll = 0xFFFFFFFFU;

// The source of scales: known before the cast, computed from slots of maxima, or from the maximum of the
// tile.
enum class From { given, slots, tile };

__device__ inline float activated(fp8::Activation activation, float x) {
  const scalar::F32 value(x);
  if (activation == fp8::Activation::relu) return formula::relu(value).v;
  if (activation == fp8::Activation::gelu) return formula::gelu(value).v;
  return formula::silu(value).v;
}

// Reads through the caches: hints that data is used once cost 4% of the time here.
__device__ inline uint4 read_words(const void* base, std::int64_t bytes) {
  return __ldg(reinterpret_cast<const uint4*>(static_cast<const char*>(base) + bytes));
}

// The position of a block, and of a thread in it.
struct Place {
  std::int64_t group, row, column;  // position of the thread's first element
  std::int64_t tile_row, tile_column;

  static __device__ Place of(std::int64_t tiles_across, std::int64_t tiles_down) {
    const std::int64_t tile = blockIdx.x;
    const std::int64_t band = tile / tiles_across;
    Place out;
    out.tile_column = tile - band * tiles_across;
    out.group = band / tiles_down;
    out.tile_row = band - out.group * tiles_down;
    out.row = out.tile_row * kTileSide + threadIdx.x / kAcross * kSide;
    out.column = out.tile_column * kTileSide + threadIdx.x % kAcross * kSide;
    return out;
  }
};

// Eight rows of eight elements with their bits in memory; padded with zeros.
template <DType kType>
struct Part {
  static constexpr int kWords = kSide / kVector<kType>;
  uint4 raw[kSide][kWords];

  __device__ void load(const CastWork& work, const Place& place, bool vectors) {
    constexpr int kBytes = kType == DType::f32 ? 4 : 2;
    const std::int64_t first = (place.group * work.rows + place.row) * work.columns + place.column;
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kWords; ++j) raw[i][j] = make_uint4(0, 0, 0, 0);
      if (place.row + i >= work.rows || place.column >= work.columns) continue;
      const std::int64_t at = first + i * work.columns;
      if (vectors) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) raw[i][j] = read_words(work.from, (at + j * kVector<kType>)*kBytes);
      } else {
        load_singly(work, at, static_cast<int>(min(work.columns - place.column, std::int64_t{kSide})),
                    raw[i]);
      }
    }
  }

  // Converts a row to floats and applies the activation.
  __device__ void row(int i, fp8::Activation activation, float (&x)[kSide]) const {
#pragma unroll
    for (int j = 0; j < kWords; ++j) unpack<kType>(raw[i][j], x + j * kVector<kType>);
    if (activation == fp8::Activation::none) return;
#pragma unroll
    for (float& one : x) one = activated(activation, one);
  }

 private:
  static __device__ void load_singly(const CastWork& work, std::int64_t at, int count, uint4* to) {
    std::uint32_t words[4 * kWords] = {};
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      if (c >= count) break;
      if constexpr (kType == DType::f32) {
        words[c] = static_cast<const std::uint32_t*>(work.from)[at + c];
      } else {
        const std::uint32_t half = static_cast<const std::uint16_t*>(work.from)[at + c];
        words[c / 2] |= half << (c % 2 * 16);
      }
    }
#pragma unroll
    for (int j = 0; j < kWords; ++j)
      to[j] = make_uint4(words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]);
  }
};

// Maxima of magnitudes; NaN is ignored.
struct Maxima {
  float row[kSide] = {}, column[kSide] = {};

  template <DType kType>
  __device__ void take(const Part<kType>& part, fp8::Activation activation) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      float x[kSide];
      part.row(i, activation, x);
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        row[i] = fmaxf(row[i], fabsf(x[c]));
        column[c] = fmaxf(column[c], fabsf(x[c]));
      }
    }
  }
  // Stores the maxima of the tile's rows.
  __device__ void put_rows(float (&shared)[kTileSide]) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int o = kAcross / 2; o > 0; o /= 2) row[i] = fmaxf(row[i], __shfl_xor_sync(kAll, row[i], o));
      if (threadIdx.x % kAcross == 0) shared[threadIdx.x / kAcross * kSide + i] = row[i];
    }
  }
  // Stores the maxima of columns over the rows of each warp.
  __device__ void put_columns(float (&shared)[kWarps][kTileSide]) {
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      column[c] = fmaxf(column[c], __shfl_xor_sync(kAll, column[c], kAcross));
      if (threadIdx.x % 32 < kAcross) shared[threadIdx.x / 32][threadIdx.x % kAcross * kSide + c] = column[c];
    }
  }
  [[nodiscard]] __device__ float all() const {
    float out = 0.0F;
#pragma unroll
    for (int i = 0; i < kSide; ++i) out = fmaxf(out, row[i]);
    return out;
  }
};

__device__ inline float column_maximum(const float (&shared)[kWarps][kTileSide], int column) {
  float out = 0.0F;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) out = fmaxf(out, shared[w][column]);
  return out;
}
__device__ inline float warp_maximum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, o));
  return x;
}
// Returns the maximum to every thread. All threads of the block must call it, once.
__device__ inline float block_maximum(float x) {
  __shared__ float of_warp[kWarps];
  x = warp_maximum(x);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  for (const float other : of_warp) x = fmaxf(x, other);
  return x;
}

// Raises a maximum. Magnitudes have the order of their bits.
__device__ inline void raise(float* to, float x) {
  const int bits = __float_as_int(x);
  if (bits > *reinterpret_cast<volatile int*>(to)) atomicMax(reinterpret_cast<int*>(to), bits);
}

__device__ inline float largest_of(fp8::Element element) {
  return element == fp8::Element::e4m3 ? codecs::E4M3::kLargest : codecs::E5M2::kLargest;
}
__device__ inline float scale_of(const CastWork& work, fp8::Element element, float amax) {
  return formula::current_scale(amax, largest_of(element), work.recipe != fp8::Recipe::current);
}

// The transposed tile in shared memory: 128 bytes for each column. A thread writes 8 bytes of 8 columns and
// reads 16 bytes of 4 columns; the swizzle avoids bank conflicts of both.
struct TransposedTile {
  std::uint8_t bytes[kTileSide * kTileSide];

  __device__ void put(int column, int unit, uint2 eight) {
    const int swizzled = unit ^ (column / kSide);
    *reinterpret_cast<uint2*>(bytes + column * kTileSide + swizzled * 8) = eight;
  }
  [[nodiscard]] __device__ uint4 get(int column, int pair) const {
    const int key = column / kSide;
    const uint4 found =
        *reinterpret_cast<const uint4*>(bytes + column * kTileSide + (2 * pair ^ (key & ~1)) * 8);
    return (key & 1) != 0 ? make_uint4(found.z, found.w, found.x, found.y) : found;
  }
};

// Waits until the previous kernel has ended, if this one was launched earlier.
__device__ inline void wait_for_launcher() {
  if constexpr (launches_early(kArch)) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The factors of a tile's elements: by rows for by_rows, by columns for transposed. A thread computes one of
// them.
struct Factors {
  __align__(16) float row[kTileSide];
  __align__(16) float column[kTileSide];
};
static_assert(kThreads == 2 * kTileSide);

// Stores the sums of the tile's columns, by the tree over rows: eight rows of a thread, two threads of a
// warp, eight warps. Padding rows are zeros, which change only the sign of a zero sum.
template <DType kType>
__device__ inline void put_sums(const Part<kType>& part, const CastWork& work, const Place& place) {
  __shared__ float of_warp[kWarps][kTileSide];
  float level[3][kSide];  // sums of 1, 2 and 4 rows, kept until the neighbour is known
  float sum[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    part.row(i, fp8::Activation::none, sum);
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      if (i % 2 == 0) {
        level[0][c] = sum[c];
        continue;
      }
      sum[c] = level[0][c] + sum[c];
      if (i % 4 == 1) {
        level[1][c] = sum[c];
        continue;
      }
      sum[c] = level[1][c] + sum[c];
      if (i == 3) {
        level[2][c] = sum[c];
        continue;
      }
      sum[c] = level[2][c] + sum[c];
    }
  }
  const int first = threadIdx.x % kAcross * kSide;
#pragma unroll
  for (int c = 0; c < kSide; ++c) {
    sum[c] += __shfl_xor_sync(kAll, sum[c], kAcross);
    if (threadIdx.x % 32 < kAcross) of_warp[threadIdx.x / 32][first + c] = sum[c];
  }
  __syncthreads();
  const std::int64_t column = place.tile_column * kTileSide + threadIdx.x;
  if (threadIdx.x >= kTileSide || column >= work.columns) return;
  float pair[kWarps];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) pair[w] = of_warp[w][threadIdx.x];
#pragma unroll
  for (int apart = 1; apart < kWarps; apart *= 2) {
#pragma unroll
    for (int w = 0; w < kWarps; w += 2 * apart) pair[w] += pair[w + apart];
  }
  work.sums[place.tile_row * work.columns + column] = pair[0];
}

// Writes the tile's columns, after all threads of the block have stored them.
__device__ inline void write_transposed(const TransposedTile& transposed, const CodesWork& across,
                                        const Place& place, std::int64_t rows, std::int64_t columns,
                                        bool whole) {
  constexpr int kPairs = kTileSide / 16;  // of a column
#pragma unroll
  for (int i = 0; i < kTileSide * kPairs / kThreads; ++i) {
    const int number = i * kThreads + threadIdx.x;
    const std::int64_t column = place.tile_column * kTileSide + number / kPairs;
    const std::int64_t row = place.tile_row * kTileSide + number % kPairs * 16;
    if (whole || (column < columns && row < rows))
      *reinterpret_cast<uint4*>(across.data + (place.group * columns + column) * rows + row) =
          transposed.get(number / kPairs, number % kPairs);
  }
}

// Raises the maximum by a thread's elements, and marks the inverse scales of a tensor with infinities.
template <From kFrom>
__device__ inline void put_maximum(const CastWork& work, float most) {
  if constexpr (kFrom == From::slots) return;  // the maximum is known
  const float all = warp_maximum(most);
  if (threadIdx.x % 32 != 0) return;
  if (work.amax != nullptr) raise(work.amax, all);
  if constexpr (kFrom != From::given) return;
  if (blockIdx.x == 0 || !formula::is_finite(all)) wait_for_launcher();
  if (formula::is_finite(all)) return;
  for (const CodesWork* codes : {&work.by_rows, &work.transposed})
    if (codes->data != nullptr) *codes->inverse = formula::inverse_scale(1.0F, all);
}

// Stores a tile's inverse scale. The last tile of a row also pads the row of scales with 1 to a multiple of
// four.
__device__ inline void put_square(float* slots, std::int64_t line, std::int64_t tile, std::int64_t tiles,
                                  float inverse) {
  const std::int64_t pitch = (tiles + 3) / 4 * 4;
  slots[line * pitch + tile] = inverse;
  if (tile + 1 < tiles) return;
  for (std::int64_t filler = tiles; filler < pitch; ++filler) slots[line * pitch + filler] = 1.0F;
}

}  // namespace octavo::cuda::fp8_tile
