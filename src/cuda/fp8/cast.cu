// Casts to FP8 on a GPU, tile by tile (cuda/fp8/tile.cuh).
//
// One kernel is enough if the scale is known (`delayed`) or belongs to a tile (`block`). Else a first kernel
// stores the maxima in the memory of the inverse scales, and a last kernel computes inverse scales from them.
// SPDX-License-Identifier: MIT
#include "cuda/fp8/cast.h"

#include "cuda/fp8/tile.cuh"

#include <algorithm>

namespace octavo::cuda {
namespace {

using namespace fp8_tile;  // NOLINT(google-build-using-namespace)

template <DType kType, From kFrom>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(const __grid_constant__ CastWork work, std::int64_t tiles_across, std::int64_t tiles_down,
                bool vectors) {
  __shared__ __align__(16) TransposedTile transposed;
  const Place place = Place::of(tiles_across, tiles_down);
  const std::int64_t rows = fp8::padded(work.rows), columns = fp8::padded(work.columns);
  const CodesWork &straight = work.by_rows, &across = work.transposed;
  const bool wants_rows = straight.data != nullptr, wants_transposed = across.data != nullptr;

  Part<kType> part;
  part.load(work, place, vectors);

  if (work.sums != nullptr) put_sums(part, work, place);

  __shared__ Factors factors;
  float most = 0.0F;  // maximum of the thread's elements
  float given_row = 0.0F, given_column = 0.0F;
  if constexpr (kFrom == From::given) {
    if (wants_rows) given_row = *straight.scale;
    if (wants_transposed) given_column = *across.scale;
  } else {
    const bool of_column = threadIdx.x >= kTileSide;
    const int number = threadIdx.x % kTileSide;
    const CodesWork& codes = of_column ? across : straight;
    const std::int64_t at = (of_column ? place.tile_column : place.tile_row) * kTileSide + number;
    const bool there = codes.data != nullptr && at < (of_column ? columns : rows);
    float amax = 0.0F;
    if constexpr (kFrom == From::slots) {
      const bool of_tensor = work.tiling == fp8::Tiling::tensor;
      if (there) amax = codes.inverse[of_tensor ? 0 : place.group * codes.scales + at];
    } else {
      __shared__ float of_rows[kTileSide], of_columns[kWarps][kTileSide];
      Maxima maxima;
      maxima.take(part, work.activation);
      most = maxima.all();
      if (work.tiling == fp8::Tiling::tile_128x128) {
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
      // The row of tiles in the order of the codes, and this tile's number in it.
      const std::int64_t line = of_column ? place.tile_column : place.tile_row;
      const std::int64_t tile = of_column ? place.tile_row : place.tile_column;
      float* const slots = codes.inverse + place.group * codes.scales;
      const float inverse = formula::inverse_scale(factor, amax);
      if (work.tiling == fp8::Tiling::tile_1x128) {
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
    if (wants_transposed && !work.alike) {
#pragma unroll
      for (int c = 0; c < kSide; ++c) scaled[c] = x[c] * column_factor[c];
      codes[i] = codes_of(across.element, scaled);
    }
  }

  if (wants_transposed) {
    transpose8(codes);
#pragma unroll
    for (int c = 0; c < kSide; ++c) transposed.put(first_column + c, threadIdx.x / kAcross, codes[c]);
    __syncthreads();
    write_transposed(transposed, across, place, rows, columns, false);
  }
  put_maximum<kFrom>(work, most);
}

// A faster kernel for most tensors of a training run: complete tiles of complete vectors, one scale, and only
// a cast. Without the checks per row of the kernel above it reaches more than 90% of a copy's speed, instead
// of 75%. A multiprocessor runs four blocks, or two for fp32, so that the rows of a thread stay in registers.
template <DType kType, From kFrom, fp8::Element kElement>
__global__ void __launch_bounds__(kThreads, kType == DType::f32 ? 2 : 4)
    plain_cast_kernel(const __grid_constant__ CastWork work, std::int64_t tiles_across,
                      std::int64_t tiles_down) {
  __shared__ __align__(16) TransposedTile transposed;
  const Place place = Place::of(tiles_across, tiles_down);
  const CodesWork &straight = work.by_rows, &across = work.transposed;
  constexpr int kBytes = kType == DType::f32 ? 4 : 2;
  const std::int64_t first = (place.group * work.rows + place.row) * work.columns + place.column;
  Part<kType> part;
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int j = 0; j < Part<kType>::kWords; ++j)
      part.raw[i][j] = read_words(work.from, (first + i * work.columns + j * kVector<kType>)*kBytes);
  }
  const CodesWork& either = straight.data != nullptr ? straight : across;
  float factor = 0.0F;
  if constexpr (kFrom == From::given)
    factor = *either.scale;
  else
    factor = scale_of(work, kElement, *either.inverse);
  float most = 0.0F;
  uint2 codes[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    float x[kSide];
    part.row(i, fp8::Activation::none, x);
#pragma unroll
    for (float& one : x) {
      most = fmaxf(most, fabsf(one));
      one *= factor;
    }
    codes[i] = codes_of(kElement, x);
    if (straight.data != nullptr)
      *reinterpret_cast<uint2*>(straight.data + first + i * work.columns) = codes[i];
  }
  if (across.data != nullptr) {
    transpose8(codes);
#pragma unroll
    for (int c = 0; c < kSide; ++c)
      transposed.put(threadIdx.x % kAcross * kSide + c, threadIdx.x / kAcross, codes[c]);
    __syncthreads();
    write_transposed(transposed, across, place, work.rows, work.columns, true);
  }
  put_maximum<kFrom>(work, most);
}

// Writes the inverse of known scales. The cast overwrites it with NaN if it finds an infinity.
__global__ void begin_kernel(const __grid_constant__ CastWork work) {
  if constexpr (launches_early(kArch)) asm volatile("griddepcontrol.launch_dependents;");
  for (const CodesWork& codes : {work.by_rows, work.transposed}) {
    if (codes.data != nullptr) *codes.inverse = formula::inverse_scale(*codes.scale, 0.0F);
  }
}

// Raises the tensor's slots, which are zero at first, to its maximum. `numel` counts complete vectors; the
// last block handles the remaining elements.
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
  // Padding is zero, and relu, gelu and silu keep it zero.
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
  if (work.transposed.data != nullptr) raise(work.transposed.inverse, all);
}

// Raises slots, which are zero at first, to the maxima of rows and columns.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    measure_kernel(const __grid_constant__ CastWork work, std::int64_t tiles_across, std::int64_t tiles_down,
                   bool vectors) {
  __shared__ float of_rows[kTileSide], of_columns[kWarps][kTileSide];
  const Place place = Place::of(tiles_across, tiles_down);
  Part<kType> part;
  part.load(work, place, vectors);
  Maxima maxima;
  maxima.take(part, work.activation);
  maxima.put_rows(of_rows);
  maxima.put_columns(of_columns);
  __syncthreads();
  const bool of_column = threadIdx.x >= kTileSide;
  const int number = threadIdx.x % kTileSide;
  const CodesWork& codes = of_column ? work.transposed : work.by_rows;
  const std::int64_t at = (of_column ? place.tile_column : place.tile_row) * kTileSide + number;
  if (codes.data == nullptr || at >= (of_column ? work.columns : work.rows)) return;
  raise(codes.inverse + place.group * codes.scales + at,
        of_column ? column_maximum(of_columns, number) : of_rows[number]);
}

// Replaces maxima by inverse scales.
__global__ void finish_kernel(const __grid_constant__ CastWork work, std::int64_t straight,
                              std::int64_t across) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool transposed = at >= straight;
  if (at >= straight + across) return;
  const CodesWork& codes = transposed ? work.transposed : work.by_rows;
  float& slot = codes.inverse[transposed ? at - straight : at];
  const float amax = slot;
  if (work.amax != nullptr) raise(work.amax, amax);
  slot = formula::inverse_scale(scale_of(work, codes.element, amax), amax);
}

std::int64_t tiles(std::int64_t size) { return fp8::tiles_in(fp8::padded(size)); }

struct Launch {
  std::int64_t across, down;
  unsigned blocks;
  bool vectors;
  bool plain;  // see plain_cast_kernel

  explicit Launch(const CastWork& work)
      : across(tiles(work.columns)),
        down(tiles(work.rows)),
        blocks(static_cast<unsigned>(across * down * work.groups)),
        vectors(work.columns % kSide == 0 && reinterpret_cast<std::uintptr_t>(work.from) % 16 == 0),
        plain(vectors && work.rows % kTileSide == 0 && work.columns % kTileSide == 0 &&
              work.tiling == fp8::Tiling::tensor && work.activation == fp8::Activation::none &&
              work.sums == nullptr &&
              (work.alike || work.by_rows.data == nullptr || work.transposed.data == nullptr)) {}
};

// Launches the kernel of a cast with one scale for a tensor.
template <DType kType, From kFrom>
cudaError_t cast_tensor(const CastWork& work, const Launch& shape, const cudaLaunchConfig_t& config) {
  if (!shape.plain)
    return cudaLaunchKernelEx(&config, cast_kernel<kType, kFrom>, work, shape.across, shape.down,
                              shape.vectors);
  const CodesWork& either = work.by_rows.data != nullptr ? work.by_rows : work.transposed;
  if (either.element == fp8::Element::e4m3)
    return cudaLaunchKernelEx(&config, plain_cast_kernel<kType, kFrom, fp8::Element::e4m3>, work,
                              shape.across, shape.down);
  return cudaLaunchKernelEx(&config, plain_cast_kernel<kType, kFrom, fp8::Element::e5m2>, work, shape.across,
                            shape.down);
}

cudaLaunchConfig_t launch_config(const Launch& shape, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = kThreads;
  config.stream = stream;
  return config;
}

cudaError_t cast_with_slots(const CastWork& work, const Launch& shape, cudaStream_t stream) {
  const auto slots = [&](const CodesWork& codes) -> std::int64_t {
    if (codes.data == nullptr) return 0;
    return codes.scales == 0 ? 1 : codes.scales * work.groups;
  };
  const std::int64_t straight = slots(work.by_rows), across = slots(work.transposed);
  for (const auto& [codes, count] :
       {std::pair(&work.by_rows, straight), std::pair(&work.transposed, across)}) {
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
    (void)cast_tensor<type, From::slots>(work, shape, launch_config(shape, stream));
  });
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>((straight + across + kThreads - 1) / kThreads);
  finish_kernel<<<blocks, kThreads, 0, stream>>>(work, straight, across);
  return cudaGetLastError();
}

}  // namespace

cudaError_t cast_fp8(const CastWork& work, int arch, cudaStream_t stream) {
  const Launch shape(work);
  if (work.tiling == fp8::Tiling::tile_1x128 || work.tiling == fp8::Tiling::tile_128x128) {
    return by_type(work.dtype, [&](auto type) {
      cast_kernel<type, From::tile>
          <<<shape.blocks, kThreads, 0, stream>>>(work, shape.across, shape.down, shape.vectors);
    });
  }
  if (work.recipe != fp8::Recipe::delayed) return cast_with_slots(work, shape, stream);
  // The cast needs the result of the small kernel only at its end, so it starts without waiting for it.
  begin_kernel<<<1, 1, 0, stream>>>(work);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = launch_config(shape, stream);
  config.attrs = &early;
  config.numAttrs = launches_early(arch) ? 1 : 0;
  return by_type(work.dtype, [&](auto type) { (void)cast_tensor<type, From::given>(work, shape, config); });
}

}  // namespace octavo::cuda
