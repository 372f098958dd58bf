// What every part of a step on a GPU knows: the moments of an algorithm, where a lane's share of a tile lies,
// the range of moments and the scales of a block.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/element_io.cuh"
#include "cuda/packed.cuh"
#include "cuda/table.h"
#include "formula/blockwise.h"
#include "lane/cuda.cuh"

namespace octavo::cuda {

// Shared memory, which the codec's tables begin.
__device__ inline std::uint32_t tables() {
  extern __shared__ __align__(1024) char shared[];
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
#else
  return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));  // of magnitudes
#endif
}

// The scale of a block: the fast lane's division where the maximum allows it.
__device__ inline formula::BlockScale scale_of(std::uint32_t max_bits, float largest) {
  const float max = __uint_as_float(max_bits);
  if (max >= kSmallFirst && max <= kLargeFirst) {
    const float scale = largest == 1.0F ? max : (F32(max) / F32(largest)).v;
    return {scale, (F32(1.0F) / F32(scale)).v, true};
  }
  return formula::block_scale(max_bits, largest);
}

template <class Algo, class Codec>
struct StepTraits {
  using Consts = typename Algo::Consts;
  using Codes = Packed<Codec>;
  using State = std::conditional_t<Codec::kBlocked, codecs::Fp32, Codec>;  // of tensors without blocks
  static constexpr int kSlots = Algo::kSlots;
  static constexpr int kStates = kSlots > 0 ? kSlots : 1;
  // A device cannot index a host's array: which slots are second moments, as bits.
  static constexpr int second_slots() {
    int bits = 0;
    for (int k = 0; k < kSlots; ++k) bits |= Algo::kMoments[k] == Moment::second ? 1 << k : 0;
    return bits;
  }
  static constexpr int kSecondSlots = second_slots();
  static __device__ constexpr bool is_second(int slot) { return ((kSecondSlots >> slot) & 1) != 0; }
  static __device__ constexpr Moment moment(int slot) {
    return is_second(slot) ? Moment::second : Moment::first;
  }
  static constexpr bool kDivides = Algo::kDivides;
  static __device__ constexpr bool own_scale(int slot) { return Codec::kRank1 && is_second(slot); }
  // Formats whose second moments have a code for zero, which positive ones must not get.
  static constexpr bool kZeroCode = Codec::kBlocked && Codec::kBits == 8;

  static __device__ int lane() { return static_cast<int>(threadIdx.x & 31U); }

  // Moments of one chunk after the step, and their bounds.
  struct Bounds {
    float high[kStates] = {};
    float low_first = kLargeFirst;
    float low_second = kLargeSecond;

    __device__ void add(const float (&s)[kStates]) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        high[k] = max_nan(high[k], fabsf(s[k]));
        if constexpr (kDivides) {
          if (is_second(k)) {
            low_second = fminf(low_second, s[k]);
          } else if (k == Algo::kNumerator) {
            low_first = fminf(low_first, fabsf(s[k]));
          }
        }
      }
    }
    [[nodiscard]] __device__ bool in_range() const {
      if constexpr (!kDivides) {
        return true;
      } else {
        bool good = low_first >= kSmallFirst && low_second >= kSmallSecond;
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          if (is_second(k)) good = good && high[k] <= kLargeSecond;
          if (k == Algo::kNumerator) good = good && high[k] <= kLargeFirst;
        }
        return good;
      }
    }
  };

  struct Place {
    std::uint32_t first;  // the lane's first chunk in the tile
    std::uint32_t apart;  // its second is this much further
    std::uint32_t lanes;  // of a block
    std::uint32_t lane;   // in the block
    std::int64_t block;   // index
  };

  struct Scale {
    float inverse;
    bool finite;
  };

  static __device__ Place place(const TensorEntry& t, std::int64_t at) {
    const auto block = static_cast<std::uint32_t>(t.block);
    const std::uint32_t size = block > kTile ? kTile : block;
    const std::uint32_t mine = threadIdx.x & 31U;
    Place p;
    p.lanes = size / (2 * kChunk);
    p.lane = mine & (p.lanes - 1);
    const std::uint32_t start = (mine & ~(p.lanes - 1)) * (2 * kChunk);
    p.block = (at + start) >> (31 - __clz(t.block));
    p.first = start + p.lane * kChunk;
    p.apart = size / 2;
    return p;
  }

  static __device__ std::uint32_t reduce_max(float value, int lanes) {
    std::uint32_t bits = __float_as_uint(value);
    for (int o = 1; o < lanes; o *= 2) bits = max(bits, __shfl_xor_sync(~0U, bits, o));
    return bits;
  }

  // Scales of a block from its lanes' maxima, written by its first lanes.
  static __device__ void scales(const TensorEntry& t, const Place& where, bool exists, const Bounds& bounds,
                                const std::uint32_t* whole, Scale (&out)[kStates]) {
    if constexpr (kSlots == 2 && !Codec::kRank1) {
      // Even lanes take the first moment, odd ones the second: one reduction and one reciprocal for both.
      const bool odd = (threadIdx.x & 1U) != 0;
      std::uint32_t mine;
      if (whole != nullptr) {
        mine = odd ? whole[1] : whole[0];
      } else {
        const std::uint32_t first = __float_as_uint(bounds.high[0]);
        const std::uint32_t second = __float_as_uint(bounds.high[1]);
        mine = max(odd ? second : first, __shfl_xor_sync(~0U, odd ? first : second, 1));
        if (where.lanes == Codec::kDefaultBlock / (2 * kChunk)) {
#pragma unroll
          for (int o = 2; o < Codec::kDefaultBlock / (2 * kChunk); o *= 2)
            mine = max(mine, __shfl_xor_sync(~0U, mine, o));
        } else {
          for (int o = 2; o < where.lanes; o *= 2) mine = max(mine, __shfl_xor_sync(~0U, mine, o));
        }
      }
      const formula::BlockScale scale = scale_of(mine, Codec::kLargest);
      if (where.lane < 2 && exists) (odd ? t.scales[1] : t.scales[0])[where.block] = scale.scale;
      const float coded = scale.finite ? scale.inverse : -1.0F;
      const float other = __shfl_xor_sync(~0U, coded, 1);
      const float inverse[2] = {odd ? other : coded, odd ? coded : other};
#pragma unroll
      for (int k = 0; k < 2; ++k) out[k] = {fmaxf(inverse[k], 0.0F), inverse[k] >= 0.0F};
    } else {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (own_scale(k)) continue;
        const std::uint32_t bits = whole != nullptr ? whole[k] : reduce_max(bounds.high[k], where.lanes);
        const formula::BlockScale scale = scale_of(bits, Codec::kLargest);
        if (where.lane == 0 && exists) t.scales[k][where.block] = scale.scale;
        out[k] = {scale.inverse, scale.finite};
      }
    }
  }

  template <int kSlot>
  static __device__ void encode_words(const float* s, const Scale& scale, std::uint32_t* words) {
    Codes::template encode<moment(kSlot)>(tables(), s, scale.inverse, words);
    if (!scale.finite) {
#pragma unroll
      for (int w = 0; w < Codes::kWords; ++w) words[w] = 0;
    }
  }

  // Second moments follow one another in the workspace.
  static __device__ float* new_scales(const TensorEntry& t, int slot) {
    std::int64_t count = 0;
    if (slot == 2)
      for (int axis = 0; axis < t.ndim; ++axis) count += t.shape[axis];
    return t.new_scales + count;
  }

  // A moment over its own scale; where that is zero or not finite, zero.
  static __device__ float over_own_scale(float moment, float own) {
    const bool usable = own > 0.0F && __float_as_uint(own) < static_cast<std::uint32_t>(formula::kInf32);
    return usable ? moment * (1.0F / own) : 0.0F;
  }

  // A bf16 state, to nearest or, of a second moment, stochastically and never to zero.
  static __device__ std::uint32_t narrow_state(int slot, const formula::RoundKey& key, std::uint64_t index,
                                               int i, float value) {
    const scalar::F32 x = formula::canonical(scalar::F32(value));
    if (!is_second(slot)) return formula::float_to_bf16(x).u() & 0xFFFFU;
    const scalar::I32 half =
        formula::float_to_bf16_stochastic(x, formula::random16(key, index, scalar::I32(i)));
    return (x.v > 0.0F ? max(half, scalar::I32(1)) : half).u() & 0xFFFFU;
  }
  static __device__ formula::RoundKey state_key(const Prepared& prepared, const TensorEntry& t, int slot) {
    return formula::round_key(prepared.round_base, t.id, 1U + static_cast<std::uint32_t>(slot));
  }
};

}  // namespace octavo::cuda
