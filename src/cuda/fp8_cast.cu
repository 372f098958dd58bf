// Casts to FP8 on a GPU. A block takes a tile of 128 x 128 elements, a thread 8 x 8 of them, which it reads
// once: its rows go out as they are, its columns by way of shared memory, so that both are written in runs of
// 128 bytes.
//
// Where the scale is known (`delayed`) or belongs to a tile (`block`), that is all. Else a first kernel finds
// the maxima and keeps them where the inverse scales will be, and a last one makes inverse scales of them.
// SPDX-License-Identifier: MIT
#include "cuda/fp8_cast.h"

#include "cuda/fp8_codes.cuh"
#include "cuda/vectors.cuh"
#include "formula/activation.h"
#include "formula/fp8_scale.h"

#include <algorithm>

namespace octavo::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 128;
constexpr int kSide = 8;                // of a thread's part
constexpr int kAcross = kTile / kSide;  // threads beside each other
constexpr unsigned kAll = 0xFFFFFFFFU;

// What a thread casts.
enum class From { given, slots, tile };  // where scales come from

__device__ inline float activated(fp8::Activation activation, float x) {
  const scalar::F32 value(x);
  if (activation == fp8::Activation::relu) return formula::relu(value).v;
  if (activation == fp8::Activation::gelu) return formula::gelu(value).v;
  return formula::silu(value).v;
}

// By way of the caches: hints that data is used once cost 4% of the time here.
__device__ inline uint4 read_words(const void* base, std::int64_t bytes) {
  return __ldg(reinterpret_cast<const uint4*>(static_cast<const char*>(base) + bytes));
}

// The place of a block, and of a thread in it.
struct Place {
  std::int64_t group, row, column;  // of the thread's first element
  std::int64_t tile_row, tile_column;

  static __device__ Place of(std::int64_t tiles_across, std::int64_t tiles_down) {
    const std::int64_t tile = blockIdx.x;
    const std::int64_t band = tile / tiles_across;
    Place out;
    out.tile_column = tile - band * tiles_across;
    out.group = band / tiles_down;
    out.tile_row = band - out.group * tiles_down;
    out.row = out.tile_row * kTile + threadIdx.x / kAcross * kSide;
    out.column = out.tile_column * kTile + threadIdx.x % kAcross * kSide;
    return out;
  }
};

// Eight rows of eight elements, as they are in memory; zeros beyond the ends.
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

  // Its type's conversion to floats, and the activation.
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

// Maxima of magnitudes; a NaN is left out.
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
  // Of the tile's rows.
  __device__ void put_rows(float (&shared)[kTile]) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int o = kAcross / 2; o > 0; o /= 2) row[i] = fmaxf(row[i], __shfl_xor_sync(kAll, row[i], o));
      if (threadIdx.x % kAcross == 0) shared[threadIdx.x / kAcross * kSide + i] = row[i];
    }
  }
  // Of the columns of a warp's rows.
  __device__ void put_columns(float (&shared)[kWarps][kTile]) {
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

__device__ inline float column_maximum(const float (&shared)[kWarps][kTile], int column) {
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
// To every thread. All threads of the block call it, once.
__device__ inline float block_maximum(float x) {
  __shared__ float of_warp[kWarps];
  x = warp_maximum(x);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  for (const float other : of_warp) x = fmaxf(x, other);
  return x;
}

// Magnitudes are ordered as their bits are.
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

// The columns of a tile, turned: a line of 128 bytes for each. A thread writes 8 bytes of 8 lines and reads
// 16 of 4; the swizzle leaves both without conflicts.
struct Turned {
  std::uint8_t bytes[kTile * kTile];

  __device__ void put(int column, int unit, uint2 eight) {
    const int swizzled = unit ^ (column / kSide);
    *reinterpret_cast<uint2*>(bytes + column * kTile + swizzled * 8) = eight;
  }
  [[nodiscard]] __device__ uint4 get(int column, int pair) const {
    const int key = column / kSide;
    const uint4 found = *reinterpret_cast<const uint4*>(bytes + column * kTile + (2 * pair ^ (key & ~1)) * 8);
    return (key & 1) != 0 ? make_uint4(found.z, found.w, found.x, found.y) : found;
  }
};

// Where a kernel was launched before the one before it has ended: until it has.
__device__ inline void wait_for_launcher() {
  if constexpr (launches_early(kArch)) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// What a tile's elements are multiplied by: rows of by_rows, columns of turned. A thread finds one of them.
struct Factors {
  __align__(16) float row[kTile];
  __align__(16) float column[kTile];
};
static_assert(kThreads == 2 * kTile);

// The sums of the tile's columns by the tree over rows: a thread's eight rows, two threads of a warp, eight
// warps. Rows that are not there are zeros, which change no sum but the sign of a zero.
template <DType kType>
__device__ inline void put_sums(const Part<kType>& part, const CastWork& work, const Place& place) {
  __shared__ float of_warp[kWarps][kTile];
  float level[3][kSide];  // sums of 1, 2 and 4 rows that wait for their neighbours
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
  const std::int64_t column = place.tile_column * kTile + threadIdx.x;
  if (threadIdx.x >= kTile || column >= work.columns) return;
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

// A row of a matrix's scales is filled up to a multiple of four: with those of no element, 1.
__device__ inline void put_square(float* slots, std::int64_t line, std::int64_t tile, std::int64_t tiles,
                                  float inverse) {
  const std::int64_t pitch = (tiles + 3) / 4 * 4;
  slots[line * pitch + tile] = inverse;
  if (tile + 1 < tiles) return;
  for (std::int64_t filler = tiles; filler < pitch; ++filler) slots[line * pitch + filler] = 1.0F;
}

// Its registers are left to the compiler: with room for one more block it reads fewer rows at once, and takes
// a tenth longer.
template <DType kType, From kFrom>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(const __grid_constant__ CastWork work, std::int64_t tiles_across, std::int64_t tiles_down,
                bool vectors) {
  __shared__ __align__(16) Turned turned;
  const Place place = Place::of(tiles_across, tiles_down);
  const std::int64_t rows = fp8::padded(work.rows), columns = fp8::padded(work.columns);
  const CodesWork &straight = work.by_rows, &across = work.turned;
  const bool wants_rows = straight.data != nullptr, wants_turned = across.data != nullptr;

  Part<kType> part;
  part.load(work, place, vectors);

  if (work.sums != nullptr) put_sums(part, work, place);

  __shared__ Factors factors;
  float most = 0.0F;  // of the thread's elements
  float given_row = 0.0F, given_column = 0.0F;
  if constexpr (kFrom == From::given) {
    if (wants_rows) given_row = *straight.scale;
    if (wants_turned) given_column = *across.scale;
  } else {
    const bool of_column = threadIdx.x >= kTile;
    const int number = threadIdx.x % kTile;
    const CodesWork& codes = of_column ? across : straight;
    const std::int64_t at = (of_column ? place.tile_column : place.tile_row) * kTile + number;
    const bool there = codes.data != nullptr && at < (of_column ? columns : rows);
    float amax = 0.0F;
    if constexpr (kFrom == From::slots) {
      const bool of_tensor = work.tiling == fp8::Tiling::tensor;
      if (there) amax = codes.inverse[of_tensor ? 0 : place.group * codes.scales + at];
    } else {
      __shared__ float of_rows[kTile], of_columns[kWarps][kTile];
      Maxima maxima;
      maxima.take(part, work.activation);
      most = maxima.all();
      if (work.tiling == fp8::Tiling::square) {
        amax = block_maximum(most);
      } else {
        maxima.put_rows(of_rows);
        maxima.put_columns(of_columns);
        __syncthreads();
        amax = of_column ? column_maximum(of_columns, number) : of_rows[number];
      }
    }
    const float factor = there ? scale_of(work, codes.element, amax) : 0.0F;
    (of_column ? factors.column : factors.row)[number] = factor;
    if (kFrom == From::tile && there) {
      // Tiles beside this one in the codes' own order, and its number among them.
      const std::int64_t line = of_column ? place.tile_column : place.tile_row;
      const std::int64_t tile = of_column ? place.tile_row : place.tile_column;
      float* const slots = codes.inverse + place.group * codes.scales;
      const float inverse = formula::inverse_scale(factor, amax);
      if (work.tiling == fp8::Tiling::line) {
        slots[tile * codes.across + at] = inverse;
      } else if (number == 0) {
        put_square(slots, line, tile, of_column ? tiles_down : tiles_across, inverse);
      }
    }
    __syncthreads();
  }

  const int first_row = threadIdx.x / kAcross * kSide, first_column = threadIdx.x % kAcross * kSide;
  float column_factor[kSide];
#pragma unroll
  for (int c = 0; c < kSide; ++c)
    column_factor[c] = kFrom == From::given ? given_column : factors.column[first_column + c];
  uint2 codes[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    float x[kSide], scaled[kSide];
    part.row(i, work.activation, x);
    if constexpr (kFrom == From::given) {
#pragma unroll
      for (const float one : x) most = fmaxf(most, fabsf(one));
    }
    if (wants_rows) {
      const float factor = kFrom == From::given ? given_row : factors.row[first_row + i];
#pragma unroll
      for (int c = 0; c < kSide; ++c) scaled[c] = x[c] * factor;
      codes[i] = codes_of(straight.element, scaled);
      if (place.row + i < rows && place.column < columns) {
        const std::int64_t at = (place.group * rows + place.row + i) * columns + place.column;
        *reinterpret_cast<uint2*>(straight.data + at) = codes[i];
      }
    }
    if (wants_turned && !work.alike) {
#pragma unroll
      for (int c = 0; c < kSide; ++c) scaled[c] = x[c] * column_factor[c];
      codes[i] = codes_of(across.element, scaled);
    }
  }

  if (wants_turned) {
    transpose8(codes);
#pragma unroll
    for (int c = 0; c < kSide; ++c) turned.put(first_column + c, threadIdx.x / kAcross, codes[c]);
    __syncthreads();
    constexpr int kPairs = kTile / 16;  // of a column
#pragma unroll
    for (int i = 0; i < kTile * kPairs / kThreads; ++i) {
      const int number = i * kThreads + threadIdx.x;
      const std::int64_t column = place.tile_column * kTile + number / kPairs;
      const std::int64_t row = place.tile_row * kTile + number % kPairs * 16;
      if (column < columns && row < rows)
        *reinterpret_cast<uint4*>(across.data + (place.group * columns + column) * rows + row) =
            turned.get(number / kPairs, number % kPairs);
    }
  }

  if constexpr (kFrom == From::slots) return;  // known already
  const float all = warp_maximum(most);
  if (threadIdx.x % 32 != 0) return;
  if (work.amax != nullptr) raise(work.amax, all);
  if constexpr (kFrom != From::given) return;
  if (blockIdx.x == 0 || !formula::is_finite(all)) wait_for_launcher();
  if (!formula::is_finite(all)) {
    if (wants_rows) *straight.inverse = formula::inverse_scale(1.0F, all);
    if (wants_turned) *across.inverse = formula::inverse_scale(1.0F, all);
  }
}

// Inverse scales of scales that are known; the cast puts NaN there if it meets an infinity.
__global__ void begin_kernel(const __grid_constant__ CastWork work) {
  if constexpr (launches_early(kArch)) asm volatile("griddepcontrol.launch_dependents;");
  for (const CodesWork& codes : {work.by_rows, work.turned}) {
    if (codes.data != nullptr) *codes.inverse = formula::inverse_scale(*codes.scale, 0.0F);
  }
}

// Raises the tensor's slots, which are zero at first, to its maximum. `numel` counts whole vectors; the rest
// is the last block's.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    measure_tensor_kernel(const __grid_constant__ CastWork work, std::int64_t numel, std::int64_t singles) {
  constexpr int kOf = kVector<kType>, kTogether = 8;
  constexpr std::int64_t kBlock = std::int64_t{kThreads} * kTogether;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  uint4 raw[kTogether];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    const std::int64_t at = first + i * kThreads;
    raw[i] = at < numel ? read_words(work.from, at * 16) : make_uint4(0, 0, 0, 0);
  }
  // Zeros that stand for no element: relu, gelu and silu leave them zero.
  float most = 0.0F;
#pragma unroll
  for (const uint4& words : raw) {
    float x[kOf];
    unpack<kType>(words, x);
    if (work.activation != fp8::Activation::none) {
#pragma unroll
      for (float& one : x) one = activated(work.activation, one);
    }
#pragma unroll
    for (const float one : x) most = fmaxf(most, fabsf(one));
  }
  if (blockIdx.x == gridDim.x - 1) {
    for (std::int64_t i = threadIdx.x; i < singles; i += kThreads) {
      float one = load_one<kType>(work.from, numel * kOf + i);
      if (work.activation != fp8::Activation::none) one = activated(work.activation, one);
      most = fmaxf(most, fabsf(one));
    }
  }
  const float all = block_maximum(most);
  if (threadIdx.x != 0) return;
  if (work.by_rows.data != nullptr) raise(work.by_rows.inverse, all);
  if (work.turned.data != nullptr) raise(work.turned.inverse, all);
}

// Raises slots, which are zero at first, to the maxima of rows.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    measure_kernel(const __grid_constant__ CastWork work, std::int64_t tiles_across, std::int64_t tiles_down,
                   bool vectors) {
  __shared__ float of_rows[kTile], of_columns[kWarps][kTile];
  const Place place = Place::of(tiles_across, tiles_down);
  Part<kType> part;
  part.load(work, place, vectors);
  Maxima maxima;
  maxima.take(part, work.activation);
  maxima.put_rows(of_rows);
  maxima.put_columns(of_columns);
  __syncthreads();
  const bool of_column = threadIdx.x >= kTile;
  const int number = threadIdx.x % kTile;
  const CodesWork& codes = of_column ? work.turned : work.by_rows;
  const std::int64_t at = (of_column ? place.tile_column : place.tile_row) * kTile + number;
  if (codes.data == nullptr || at >= (of_column ? work.columns : work.rows)) return;
  raise(codes.inverse + place.group * codes.scales + at,
        of_column ? column_maximum(of_columns, number) : of_rows[number]);
}

// Maxima become inverse scales.
__global__ void finish_kernel(const __grid_constant__ CastWork work, std::int64_t straight,
                              std::int64_t across) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool turned = at >= straight;
  if (at >= straight + across) return;
  const CodesWork& codes = turned ? work.turned : work.by_rows;
  float& slot = codes.inverse[turned ? at - straight : at];
  const float amax = slot;
  if (work.amax != nullptr) raise(work.amax, amax);
  slot = formula::inverse_scale(scale_of(work, codes.element, amax), amax);
}

std::int64_t tiles(std::int64_t size) { return (fp8::padded(size) + kTile - 1) / kTile; }

struct Launch {
  std::int64_t across, down;
  unsigned blocks;
  bool vectors;

  explicit Launch(const CastWork& work)
      : across(tiles(work.columns)),
        down(tiles(work.rows)),
        blocks(static_cast<unsigned>(across * down * work.groups)),
        vectors(work.columns % kSide == 0 && reinterpret_cast<std::uintptr_t>(work.from) % 16 == 0) {}
};

cudaError_t cast_with_slots(const CastWork& work, const Launch& shape, cudaStream_t stream) {
  const auto slots = [&](const CodesWork& codes) -> std::int64_t {
    if (codes.data == nullptr) return 0;
    return codes.scales == 0 ? 1 : codes.scales * work.groups;
  };
  const std::int64_t straight = slots(work.by_rows), across = slots(work.turned);
  for (const auto& [codes, count] : {std::pair(&work.by_rows, straight), std::pair(&work.turned, across)}) {
    if (count == 0) continue;
    const cudaError_t error =
        cudaMemsetAsync(codes->inverse, 0, static_cast<std::size_t>(count) * sizeof(float), stream);
    if (error != cudaSuccess) return error;
  }
  const cudaError_t error = by_type(work.dtype, [&](auto type) {
    if (work.tiling == fp8::Tiling::tensor) {
      constexpr std::int64_t kOf = kVector<type>, kBlock = std::int64_t{kThreads} * 8;
      const std::int64_t numel = work.groups * work.rows * work.columns;
      const std::int64_t whole = reinterpret_cast<std::uintptr_t>(work.from) % 16 == 0 ? numel / kOf : 0;
      const auto blocks = static_cast<unsigned>(std::max<std::int64_t>((whole + kBlock - 1) / kBlock, 1));
      measure_tensor_kernel<type><<<blocks, kThreads, 0, stream>>>(work, whole, numel - whole * kOf);
    } else {
      measure_kernel<type>
          <<<shape.blocks, kThreads, 0, stream>>>(work, shape.across, shape.down, shape.vectors);
    }
    cast_kernel<type, From::slots>
        <<<shape.blocks, kThreads, 0, stream>>>(work, shape.across, shape.down, shape.vectors);
  });
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>((straight + across + kThreads - 1) / kThreads);
  finish_kernel<<<blocks, kThreads, 0, stream>>>(work, straight, across);
  return cudaGetLastError();
}

// --- sums over rows ---

// Of the 2^kLevel rows from `row` on, as far as they are there; the earlier ones are on the left.
template <int kLevel>
__device__ inline float tree(const float* from, std::int64_t row, std::int64_t rows, std::int64_t columns) {
  if constexpr (kLevel == 0) {
    return from[row * columns];
  } else {
    constexpr std::int64_t kHalf = std::int64_t{1} << (kLevel - 1);
    const float left = tree<kLevel - 1>(from, row, rows, columns);
    if (row + kHalf >= rows) return left;
    return left + tree<kLevel - 1>(from, row + kHalf, rows, columns);
  }
}
constexpr int kLevels = 5;
static_assert(1 << kLevels == kSumRows);

__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool last) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  for (std::int64_t i = blockIdx.y; i * kSumRows < rows; i += gridDim.y) {
    const float sum = tree<kLevels>(from + column, i * kSumRows, rows, columns);
    to[i * columns + column] = last ? sum + 0.0F : sum;
  }
}

// --- delayed scaling ---

// A block for each tensor.
__global__ void __launch_bounds__(kThreads)
    update_kernel(float* states, std::int64_t length, fp8::AmaxAlgo algo, int margin) {
  const fp8::DelayedTensor tensor = fp8::DelayedTensor::at(states, length, blockIdx.x);
  const float recent = tensor.history[0];
  if (recent == 0.0F) return;  // not used: every thread leaves
  float most = 0.0F;
  // Slots move down by one; the one behind the last is slot 0.
  for (std::int64_t first = 0; first < length; first += kThreads) {
    const std::int64_t i = first + threadIdx.x;
    const float next = i + 1 < length ? tensor.history[i + 1] : recent;
    __syncthreads();  // whoever reads a slot has read it
    if (i >= length) continue;
    most = next > most ? next : most;  // NaN is left out
    tensor.history[i] = i == 0 ? 0.0F : next;
  }
  const float all = block_maximum(most);
  if (threadIdx.x != 0) return;
  const float amax = algo == fp8::AmaxAlgo::max ? all : recent;
  for (const fp8::Element element : {fp8::Element::e4m3, fp8::Element::e5m2}) {
    float& scale = tensor.scales[static_cast<int>(element)];
    scale = formula::delayed_scale(amax, ldexpf(largest_of(element), -margin), scale);
  }
}

}  // namespace

cudaError_t cast_fp8(const CastWork& work, int arch, cudaStream_t stream) {
  const Launch shape(work);
  if (work.tiling == fp8::Tiling::line || work.tiling == fp8::Tiling::square) {
    return by_type(work.dtype, [&](auto type) {
      cast_kernel<type, From::tile>
          <<<shape.blocks, kThreads, 0, stream>>>(work, shape.across, shape.down, shape.vectors);
    });
  }
  if (work.recipe != fp8::Recipe::delayed) return cast_with_slots(work, shape, stream);
  // The cast needs nothing of the small kernel before it until its end, so it does not wait for it.
  begin_kernel<<<1, 1, 0, stream>>>(work);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = launches_early(arch) ? 1 : 0;
  return by_type(work.dtype, [&](auto type) {
    (void)cudaLaunchKernelEx(&config, cast_kernel<type, From::given>, work, shape.across, shape.down,
                             shape.vectors);
  });
}

cudaError_t sum_rows(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool last,
                     cudaStream_t stream) {
  const auto down = static_cast<unsigned>(std::min<std::int64_t>((rows + kSumRows - 1) / kSumRows, 65535));
  const dim3 grid(static_cast<unsigned>((columns + kThreads - 1) / kThreads), down);
  sum_rows_kernel<<<grid, kThreads, 0, stream>>>(from, rows, columns, to, last);
  return cudaGetLastError();
}

cudaError_t update_fp8_scales(const fp8::ScaleUpdate& update, cudaStream_t stream) {
  update_kernel<<<static_cast<unsigned>(update.tensors), kThreads, 0, stream>>>(update.states, update.length,
                                                                                update.algo, update.margin);
  return cudaGetLastError();
}

}  // namespace octavo::cuda
