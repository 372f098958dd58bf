// Dropout on a GPU: two kernels that give the same bits. If every row of a sample consists of complete blocks
// of two times kDropoutPair elements, at multiples of sixteen bytes, a warp processes blocks: a lane's two
// vectors share their counters, so that a hash serves two elements and memory is the limit. All other tensors
// are processed vector by vector, with a hash for each element.
// SPDX-License-Identifier: MIT
#include "cuda/dropout/dropout.h"

#include "cuda/runtime/vectors.cuh"

#include <algorithm>

namespace octavo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPair = formula::kDropoutPair;
constexpr int kBlock = 2 * kPair;
// The number of blocks that a warp processes in sequence, so that finding their sample is a small part of its
// work.
constexpr std::uint32_t kTogether = 8;

__device__ inline float dropped(float x, scalar::I32 half, const formula::Dropout& how) {
  return formula::drop(scalar::F32(x), half, scalar::I32(how.threshold), scalar::F32(how.scale)).v;
}

// The counters of a sample; `high` is their upper word.
struct Counters {
  formula::RoundKey key;
  std::uint32_t high, second;

  __device__ Counters(const DropWork& work, std::int64_t sample, std::uint32_t upper)
      : key(formula::dropout_key(work.base, work.samples[sample], work.layer)),
        high(upper),
        second(formula::high_word(key, upper)) {}
  [[nodiscard]] __device__ scalar::I32 bits(std::uint32_t low) const {
    return formula::mix32(scalar::I32::of(low), scalar::I32::of(key.low), scalar::I32::of(second));
  }
};

// REQUIRES: counters of a sample that fit 32 bits.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    drop_blocks_kernel(const __grid_constant__ DropWork work, std::uint32_t batch,
                       std::uint32_t blocks_of_row, std::uint32_t tasks_of_row, std::uint32_t tasks) {
  constexpr int kOf = kVector<kType>;
  constexpr int kParts = kPair / (32 * kOf);
  const std::uint32_t task = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (task >= tasks) return;
  const std::uint32_t row = task / tasks_of_row;
  const std::uint32_t first = (task - row * tasks_of_row) * kTogether;
  const std::uint32_t last = min(first + kTogether, blocks_of_row);
  const std::uint32_t outer = row / batch, lane = threadIdx.x % 32;
  const Counters counters(work, row - outer * batch, 0);
  // The blocks of a sample are numbered over all its rows.
  std::uint32_t place = (outer * blocks_of_row + first) * kPair + lane * kOf;
  const std::int64_t at = (static_cast<std::int64_t>(row) * blocks_of_row + first) * (kBlock / kOf) + lane;
  const uint4* from = static_cast<const uint4*>(work.from) + at;
  uint4* to = static_cast<uint4*>(work.to) + at;
  for (std::uint32_t block = first; block < last;
       ++block, place += kPair, from += kBlock / kOf, to += kBlock / kOf) {
    uint4 words[2][kParts];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) words[half][part] = from[(half * kParts + part) * 32];
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float low[kOf], high[kOf];
      unpack<kType>(words[0][part], low);
      unpack<kType>(words[1][part], high);
#pragma unroll
      for (int i = 0; i < kOf; ++i) {
        const scalar::I32 bits = counters.bits((place + part * 32 * kOf) | static_cast<unsigned>(i));
        low[i] = dropped(low[i], formula::dropout_half(bits, false), work.how);
        high[i] = dropped(high[i], formula::dropout_half(bits, true), work.how);
      }
      to[part * 32] = pack<kType>(low);
      to[(kParts + part) * 32] = pack<kType>(high);
    }
  }
}

struct Quotient {
  std::int64_t value, rest;
};
__device__ inline Quotient divide(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) {  // 32-bit division is much faster
    const auto value = static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return {value, static_cast<std::uint32_t>(a) - value * static_cast<std::uint32_t>(b)};
  }
  return {a / b, a % b};
}

// The location of an element of the tensor.
struct Spot {
  std::int64_t begin;  // in its row
  std::uint64_t element;
  Counters counters;

  static __device__ Spot of(const DropWork& work, std::int64_t at) {
    const Quotient row = divide(at, work.row);
    const Quotient place = work.rows == 1 ? Quotient{row.value, 0} : divide(row.value, work.rows);
    const Quotient outer = divide(place.value, work.batch);
    const auto element =
        static_cast<std::uint64_t>((outer.value * work.rows + place.rest) * work.pitch + row.rest);
    return {row.rest, element, Counters(work, outer.rest, upper(element))};
  }
  static __device__ std::uint32_t upper(std::uint64_t element) {
    return static_cast<std::uint32_t>(formula::dropout_place(element).counter >> 32);
  }
};

// `aligned`: both addresses are multiples of sixteen.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    drop_any_kernel(const __grid_constant__ DropWork work, bool aligned) {
  constexpr int kOf = kVector<kType>;
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kOf;
  if (at >= work.numel) return;
  const int count = work.numel - at < kOf ? static_cast<int>(work.numel - at) : kOf;
  const bool whole = aligned && count == kOf;
  float x[kOf] = {};
  if (whole) {
    unpack<kType>(static_cast<const uint4*>(work.from)[at / kOf], x);
  } else {
#pragma unroll
    for (int i = 0; i < kOf; ++i) {
      if (i < count) x[i] = load_one(work.from, static_cast<std::uint8_t>(kType), at + i);
    }
  }
  const Spot spot = Spot::of(work, at);
  if (spot.begin + kOf <= work.row && spot.element % kPair + kOf <= kPair) {
    // Computes consecutive counters. Those past the end of the tensor are not used.
    const formula::DropoutPlace place = formula::dropout_place(spot.element);
#pragma unroll
    for (int i = 0; i < kOf; ++i) {
      const scalar::I32 bits = spot.counters.bits(static_cast<std::uint32_t>(place.counter) + i);
      x[i] = dropped(x[i], formula::dropout_half(bits, place.high), work.how);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOf; ++i) {
      if (i >= count) break;
      const Spot one = Spot::of(work, at + i);
      const formula::DropoutPlace place = formula::dropout_place(one.element);
      const scalar::I32 bits = one.counters.bits(static_cast<std::uint32_t>(place.counter));
      x[i] = dropped(x[i], formula::dropout_half(bits, place.high), work.how);
    }
  }
  if (whole) {
    static_cast<uint4*>(work.to)[at / kOf] = pack<kType>(x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kOf; ++i) {
    if (i >= count) break;
    store_one<kType>(work.to, at + i, x[i]);
  }
}

template <DType kType>
cudaError_t launch(const DropWork& work, cudaStream_t stream) {
  const auto grid_of = [](std::int64_t threads) {
    return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  };
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(work.from) | reinterpret_cast<std::uintptr_t>(work.to)) % 16 == 0;
  const std::int64_t rows = work.numel / work.inner, blocks_of_row = work.inner / kBlock;
  const std::int64_t tasks_of_row = (blocks_of_row + kTogether - 1) / kTogether;
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  const bool counts_fit = work.numel / work.batch <= 2 * kMost && work.numel / kBlock < kMost;
  const bool one_run = work.row == work.pitch;  // a sample's numbers have no gaps
  if (aligned && one_run && work.inner % kBlock == 0 && counts_fit) {
    const auto tasks = static_cast<std::uint32_t>(rows * tasks_of_row);
    drop_blocks_kernel<kType><<<grid_of(std::int64_t{tasks} * 32), kThreads, 0, stream>>>(
        work, static_cast<std::uint32_t>(work.batch), static_cast<std::uint32_t>(blocks_of_row),
        static_cast<std::uint32_t>(tasks_of_row), tasks);
  } else {
    const std::int64_t vectors = (work.numel + kVector<kType> - 1) / kVector<kType>;
    drop_any_kernel<kType><<<grid_of(vectors), kThreads, 0, stream>>>(work, aligned);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t drop(const DropWork& work, cudaStream_t stream) {
  if (work.dtype == DType::f32) return launch<DType::f32>(work, stream);
  if (work.dtype == DType::bf16) return launch<DType::bf16>(work, stream);
  return launch<DType::f16>(work, stream);
}

}  // namespace octavo::cuda
