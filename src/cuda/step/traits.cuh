// The properties that every part of a step on a GPU uses: the moments of an algorithm, a lane's share of a
// tile, the range of moments and the scales of a block.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/format_tables.cuh"
#include "cuda/step/tensor_table.h"
#include "cuda/step/weight_element.cuh"
#include "formula/blockwise.h"
#include "lane/cuda.cuh"

#include <algorithm>
#include <bit>

namespace octavo::cuda {

// Returns the shared memory, which begins with the codec's tables.
__device__ inline char* shared_memory() {
  extern __shared__ __align__(1024) char shared[];
  return shared;
}
__device__ inline std::uint32_t tables() {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared_memory()));
}

__device__ inline float max_nan(float a, float b) {
  if constexpr (has_bf16(kArch)) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
  } else {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));  // bits of magnitudes
  }
}

// Returns the maximum of three, in one instruction if the architecture has it. REQUIRES: bits of magnitudes.
__device__ inline float max_of_bits(float a, float b, float c) {
  return __uint_as_float(__vimax3_u32(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c)));
}
__device__ inline float min_of_bits(float a, float b, float c) {
  return __uint_as_float(__vimin3_u32(__float_as_uint(a), __float_as_uint(b), __float_as_uint(c)));
}

// Returns the scale of a block whose maximum is at most kLargeFirst, by the fast lane's division:
// formula::block_scale without a branch. A quotient that is too small to be exact is below the smallest
// scale.
__device__ inline formula::BlockScale small_scale(float max, float largest) {
  const float wanted = largest == 1.0F ? max : (F32(max * 0x1p48F) / F32(largest)).v * 0x1p-48F;
  const float scale = fmaxf(wanted, formula::kSmallestScale);
  const float inverse = (F32(1.0F) / F32(scale)).v;
  const bool any = max > 0.0F;
  return {any ? scale : 0.0F, any ? inverse : 0.0F, true};
}
__device__ inline formula::BlockScale scale_of(std::uint32_t max_bits, float largest) {
  const float max = __uint_as_float(max_bits);
  return max <= kLargeFirst ? small_scale(max, largest) : formula::block_scale(max_bits, largest);
}

// Starts the kernels of a step: fills the format's tables, then calls f(prepared constants, the warp's number
// in its block, warps of a block), unless the step is skipped.
template <class Format, class Fn>
__device__ inline void start_pass(const StepParams& params, Fn&& f) {
  const Prepared& prepared = params.prepared != nullptr ? *params.prepared : params.constants;
  if (prepared.skip != 0) return;
  FormatTables<Format>::fill_tables(tables());
  __syncthreads();
  // After a shuffle the compiler knows that the warp's lanes agree.
  const std::uint32_t warp = __shfl_sync(~0U, threadIdx.x / 32, 0);
  f(prepared, warp, blockDim.x / 32);
}

template <class Algo, class Format>
struct StepTraits {
  using Consts = typename Algo::Consts;
  using Codes = FormatTables<Format>;
  // The format of tensors without blocks.
  using Plain = std::conditional_t<Format::kBlocked, octavo::Format<codecs::Fp32>, Format>;
  static constexpr int kSlots = Algo::kSlots;
  static constexpr int kStates = kSlots > 0 ? kSlots : 1;
  // Returns the slots of second moments as bits, because a device cannot index a host's array.
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
  template <int kSlot, class Of = Format>
  using Codec = typename Of::template Codec<moment(kSlot)>;
  static constexpr bool kDivides = Algo::kDivides;
  // Returns true for codes with rank-1 scales.
  static __device__ constexpr bool own_scale(int slot) {
    return is_second(slot) ? Format::template Codec<Moment::second>::kScale == ScalePolicy::axis
                           : Format::template Codec<Moment::first>::kScale == ScalePolicy::axis;
  }
  // Returns a slot's number among those with rank-1 scales.
  static __device__ constexpr int own_index(int slot) {
    int before = 0;
    for (int k = 0; k < slot; ++k) before += own_scale(k) ? 1 : 0;
    return before;
  }
  static constexpr int kOwnSlots = own_index(kSlots);
  static constexpr int kOwn = kOwnSlots > 0 ? kOwnSlots : 1;  // the size of an array
  static __device__ constexpr float largest(int slot) {
    return is_second(slot) ? largest_of<Moment::second>() : largest_of<Moment::first>();
  }
  // The code for zero of a second moment, which positive ones must not get; -1: there is none.
  template <int kSlot>
  static constexpr int kZeroCode =
      is_second(kSlot) ? codecs::zero_code<typename Format::template Map<moment(kSlot)>, moment(kSlot)>()
                       : -1;
  // Packs eight codes of a slot.
  template <int kSlot>
  static constexpr int kWords = Codes::template Of<moment(kSlot)>::kWords;
  // Rarely used rules have no quick path, so that their code is small.
  static constexpr bool kQuick = Codes::kQuick && !requires { Algo::kRare; };

  static constexpr bool kHasTrustRatio = formula::kHasTrustRatio<Algo>;

  static __device__ int lane() { return static_cast<int>(threadIdx.x & 31U); }

  // Calls f(a slot, as a constant) for each slot. Quick tiles write the loop out, because the compiler orders
  // nested lambdas differently.
  template <class Fn>
  static __device__ void for_slots(Fn&& f) {
    [&]<int... kSlot>(std::integer_sequence<int, kSlot...>) {
      (f(std::integral_constant<int, kSlot>{}), ...);
    }
    (std::make_integer_sequence<int, kSlots>{});
  }

  // The numerator is a moment, or the value that the rule returns.
  static constexpr bool kOwnNumerator = requires(const Consts& c, F32 x) { Algo::numerator(c, x, &x); };
  static constexpr bool kDividesGradient = requires { Algo::kDividesGradient; };
  static __device__ float numerator(const Consts& c, F32 g, const F32* s) {
    if constexpr (kOwnNumerator) {
      return Algo::numerator(c, g, s).v;
    } else {
      return s[Algo::kNumerator].v;
    }
  }

  // True for second moments that have a code for zero.
  template <int kSlot>
  static constexpr bool codes_zero() {
    if constexpr (kSlot >= kSlots || !Format::kBlocked) {
      return false;
    } else {
      return kZeroCode<kSlot> >= 0 || codes_zero<kSlot + 1>();
    }
  }
  static constexpr bool kCodesZero = codes_zero<0>();

  // The largest moments of some elements after the step, and the smallest second one, as magnitudes. A NaN is
  // larger than all, and so is a negative second moment, which should not exist.
  struct Bounds {
    float high[kStates] = {};
    float low_second = kLargeSecond;

    __device__ void include(const float (&s)[kStates]) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) high[k] = max_nan(high[k], fabsf(s[k]));
    }
    // Includes eight elements from `first` on.
    template <int kStride>
    __device__ void include8(const float (&s)[kStates][kStride], int first) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
#pragma unroll
        for (int i = first; i < first + kChunk; i += 2) {
          if (is_second(k)) {
            high[k] = max_of_bits(high[k], s[k][i], s[k][i + 1]);
            if constexpr (kCodesZero) low_second = min_of_bits(low_second, s[k][i], s[k][i + 1]);
          } else {
            high[k] = max_nan(max_nan(high[k], fabsf(s[k][i])), fabsf(s[k][i + 1]));
          }
        }
      }
    }
    // Returns true if no moment is too large for an exact division and root.
    [[nodiscard]] __device__ bool in_range(const Consts& c) const {
      bool good = true;
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        good = good && __float_as_uint(high[k]) <= __float_as_uint(is_second(k) ? kLargeSecond : kLargeFirst);
      if constexpr (kDivides && kOwnNumerator && !kDividesGradient) {
        F32 most[kStates];
#pragma unroll
        for (int k = 0; k < kSlots; ++k) most[k] = F32(high[k]);
        good = good && fabsf(numerator(c, F32(0.0F), most)) <= kLargeFirst;
      }
      return good;
    }
  };

  struct Place {
    std::uint32_t first;  // the lane's first chunk in the tile
    std::uint32_t apart;  // the distance to its second
    std::uint32_t lanes;  // lanes per block
    std::uint32_t lane;   // number in the block
    std::int64_t block;   // index of the block
  };

  // The position in a quick tile, in chunks of the complete tensor.
  struct QuickPlace {
    std::uint32_t first;
    std::uint32_t apart;
    std::uint32_t lanes;
    std::uint32_t lane;
    std::uint32_t block;
  };
  // `kDefault`: its blocks have the format's default size. `mine` is the lane's number in the warp.
  static constexpr std::uint32_t kDefaultLanes = Format::kDefaultBlock / (2 * kChunk);
  template <bool kDefault>
  static __device__ QuickPlace quick_place(const TensorEntry& t, std::uint32_t tile, std::uint32_t mine) {
    constexpr int kLog2 = std::countr_zero(std::max(kDefaultLanes, 1U));
    const std::uint32_t log2 = kDefault ? kLog2 : t.lanes_log2;
    QuickPlace p;
    p.lanes = p.apart = 1U << log2;
    p.lane = mine & (p.lanes - 1);
    p.first = tile * (kTile / kChunk) + mine + (mine & (0U - p.lanes));
    p.block = (tile * 32 + mine) >> log2;
    return p;
  }

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

  // Computes the scales of a block from its lanes' maxima; its first lanes write them. `kSmall`: small_scale
  // applies to all maxima.
  template <bool kSmall, class Where>
  static __device__ void scales(const TensorEntry& t, const Where& where, bool exists, const Bounds& bounds,
                                const std::uint32_t* whole, Scale (&out)[kStates]) {
    const auto scale_by = [](std::uint32_t bits, float largest) {
      return kSmall ? small_scale(__uint_as_float(bits), largest) : scale_of(bits, largest);
    };
    if constexpr (kSlots == 2 && !Format::kRank1) {
      // Even lanes process the first moment, odd lanes the second: one reduction and one reciprocal for both.
      const bool odd = (threadIdx.x & 1U) != 0;
      std::uint32_t mine;
      if (whole != nullptr) {
        mine = odd ? whole[1] : whole[0];
      } else {
        const std::uint32_t first = __float_as_uint(bounds.high[0]);
        const std::uint32_t second = __float_as_uint(bounds.high[1]);
        mine = max(odd ? second : first, __shfl_xor_sync(~0U, odd ? first : second, 1));
        for (std::uint32_t o = 2; o < where.lanes; o *= 2) mine = max(mine, __shfl_xor_sync(~0U, mine, o));
      }
      constexpr bool kSame = largest(0) == largest(1);
      const formula::BlockScale scale = scale_by(mine, kSame || !odd ? largest(0) : largest(1));
      if (where.lane < 2 && exists) (odd ? t.scales[1] : t.scales[0])[where.block] = scale.scale;
      const float coded = scale.finite ? scale.inverse : -1.0F;
      const float other = __shfl_xor_sync(~0U, coded, 1);
      const float inverse[2] = {odd ? other : coded, odd ? coded : other};
#pragma unroll
      for (int k = 0; k < 2; ++k)
        out[k] = {kSmall ? inverse[k] : fmaxf(inverse[k], 0.0F), kSmall || inverse[k] >= 0.0F};
    } else {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (own_scale(k)) continue;
        const std::uint32_t bits = whole != nullptr ? whole[k] : reduce_max(bounds.high[k], where.lanes);
        const formula::BlockScale scale = scale_by(bits, largest(k));
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
      for (int w = 0; w < kWords<kSlot>; ++w) words[w] = 0;
    }
  }

  // Writes the code of zero for second moments that are zero.
  template <int kSlot>
  static __device__ void put_zeros(const float* s, std::uint32_t* words) {
    constexpr int kBits = Codec<kSlot>::kBits;
    constexpr int kZero = kZeroCode<kSlot>;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (s[i] != 0.0F) continue;
      clear_code<kBits>(words, i);
      if constexpr (kZero > 0) put_code<kBits>(words, i, kZero);
    }
  }

  template <int kSlot>
  static __device__ std::uint32_t narrow_state(const formula::RoundKey& key, std::uint64_t index, int i,
                                               float value) {
    using Half = Codec<kSlot, Plain>;
    return Half::template encode<moment(kSlot)>(scalar::F32(value), key, index, scalar::I32(i)).u() & 0xFFFFU;
  }
  // True for a slot whose codes are rounded stochastically.
  template <int kSlot>
  static constexpr bool kStochastic =
      codecs::kStochasticCodes<typename Format::template Codec<moment(kSlot)>, moment(kSlot)>;
  static __device__ formula::RoundKey code_key(const Prepared& prepared, const TensorEntry& t, int slot) {
    return formula::round_key(prepared.round_base, t.id, formula::code_stream(slot));
  }
  static __device__ formula::RoundKey state_key(const Prepared& prepared, const TensorEntry& t, int slot) {
    return formula::round_key(prepared.round_base, t.id, 1U + static_cast<std::uint32_t>(slot));
  }

 private:
  template <Moment kMoment>
  static __device__ constexpr float largest_of() {
    if constexpr (Format::kBlocked) return Format::template Codec<kMoment>::kLargest;
    return 0.0F;
  }
};

}  // namespace octavo::cuda
