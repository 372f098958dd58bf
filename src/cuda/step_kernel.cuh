// The step on a GPU: one launch over all tensors of a group, one template for every algorithm, format and
// weight store. A warp takes a tile of 512 elements: load, decode, formula, maximum, encode, store, without
// leaving its registers and without waiting for another warp.
//
// A block of 16 * G elements belongs to G neighbouring lanes; a lane holds two chunks of eight elements, the
// second half a block after the first, so that neighbouring lanes touch neighbouring bytes. Chunks that are
// whole, aligned and in range go by vectors and the lane without branches (lane/cuda.cuh); the rest, element
// by element in the scalar lane, with the same results.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/axis_scales.cuh"
#include "cuda/element_io.cuh"
#include "cuda/packed.cuh"
#include "cuda/table.h"
#include "formula/blockwise.h"
#include "lane/cuda.cuh"

namespace octavo::cuda {

#ifndef OCTAVO_THREADS
#define OCTAVO_THREADS 768
#endif
inline constexpr int kThreads = OCTAVO_THREADS;

// The address of the codec's tables in shared memory.
__device__ inline std::uint32_t tables() {
  extern __shared__ __align__(16) char shared[];
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

template <class Algo, class Codec, WeightKind kKind>
class Step {
  using Consts = typename Algo::Consts;
  using Codes = Packed<Codec>;
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
  static constexpr bool kDivides = kSlots >= 2;
  static __device__ constexpr bool own_scale(int slot) { return Codec::kRank1 && is_second(slot); }
  // Formats whose second moments have a code for zero, which positive ones must not get.
  static constexpr bool kZeroCode = Codec::kBlocked && Codec::kBits == 8;

 public:
  __device__ Step(const StepParams& params, const Prepared& prepared)
      : params_(params),
        prepared_(prepared),
        c_(*reinterpret_cast<const Consts*>(prepared.consts)),
        in_range_(prepared.in_range != 0) {
    // Operands from the constant bank cost no registers.
    const auto& host = *reinterpret_cast<const Consts*>(params.constants.consts);
    Algo::take_fixed(host, c_);
    c_.decay = host.decay;
    c_.coupled = host.coupled;
  }

  __device__ void run(std::int64_t unit) {
    const TensorEntry* entry = params_.tensors + params_.map[unit / kMapStep];
    while (entry[1].first_unit <= unit) ++entry;
    const TensorEntry& t = *entry;
    const std::int64_t at = (unit - t.first_unit) * (t.block > kTile ? t.block : kTile);
    const bool whole = t.aligned != 0 && in_range_ && at + kTile <= t.numel;
    if (!Codec::kBlocked || t.plain != 0) {
      bool done = false;
      if (whole) done = is_f32(t.grad_dtype) ? plain_tile<true>(t, at) : plain_tile<false>(t, at);
      if (!done) slow_plain(prepared_, t, at);
    } else if constexpr (Codec::kBlocked) {
      bool done = false;
      if (whole && t.block <= kTile && !Codec::kRank1)
        done = is_f32(t.grad_dtype) ? tile<true>(t, at) : tile<false>(t, at);
      if (!done) slow_unit(params_, prepared_, t, at);
    }
  }

 private:
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
          } else {
            low_first = fminf(low_first, fabsf(s[k]));
          }
        }
      }
    }
    [[nodiscard]] __device__ bool in_range() const {
      if constexpr (!kDivides) return true;
      bool good = low_first >= kSmallFirst && low_second >= kSmallSecond && high[0] <= kLargeFirst;
#pragma unroll
      for (int k = 1; k < kSlots; ++k) good = good && high[k] <= kLargeSecond;
      return good;
    }
  };

  // The formula over eight elements whose weights and raw gradients are unpacked; states are in `s`.
  template <int kStride>
  __device__ void update8(float* p, float* g, float (*s)[kStride], int first, Bounds& bounds) const {
    formula::Common common = c_;
    if (c_.coupled) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
    } else {
      common.coupled = false;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      F32 state[kStates];
      float kept[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) state[k] = F32(s[k][first + i]);
      p[i] = Algo::update(c_, F32(g[i]), F32(p[i]), state).v;
#pragma unroll
      for (int k = 0; k < kSlots; ++k) s[k][first + i] = kept[k] = state[k].v;
      bounds.add(kept);
    }
  }

  // One element at a time in the scalar lane: whatever its alignment, range and number. Moments go to `out`,
  // zero beyond `valid`.
  template <class State>
  static __device__ __noinline__ void careful(const TensorEntry& t, const Prepared& prepared, std::int64_t at,
                                              int valid, bool write, float* out) {
    const Consts c = *reinterpret_cast<const Consts*>(prepared.consts);
    for (int i = 0; i < kChunk; ++i) {
      scalar::F32 s[kStates];
      if (i < valid) {
        const std::int64_t e = at + i;
#pragma unroll
        for (int k = 0; k < kSlots; ++k) s[k] = load_state<State>(t, k, e);
        const scalar::F32 before(load_weight<kKind>(t, e));
        const scalar::F32 raw(load_one(t.grad, t.grad_dtype, e));
        const scalar::F32 p = Algo::update(c, formula::gradient(c, raw, before), before, s);
        if (write) store_weight<kKind>(t, prepared.round_base, e, p.v);
      }
#pragma unroll
      for (int k = 0; k < kSlots; ++k) out[k * kChunk + i] = s[k].v;
    }
  }

  template <class State>
  static __device__ scalar::F32 load_state(const TensorEntry& t, int slot, std::int64_t e) {
    if constexpr (!State::kBlocked) {
      if constexpr (State::kBits == 32) return static_cast<const float*>(t.codes[slot])[e];
      return formula::bf16_to_float(scalar::I32(static_cast<const std::uint16_t*>(t.codes[slot])[e]));
    } else {
      const auto* bytes = static_cast<const std::uint8_t*>(t.codes[slot]);
      const bool second = is_second(slot);
      std::uint32_t code;
      if constexpr (State::kBits == 4) {
        code = (bytes[e / 2] >> (e % 2 == 0 ? 4 : 0)) & 15U;
      } else {
        code = bytes[e];
      }
      const float value = second ? kValues<typename Codes::Codec, Moment::second>.value[code]
                                 : kValues<typename Codes::Codec, Moment::first>.value[code];
      const float scale =
          Codec::kRank1 && second ? AxisWalk(t, e).scale(t.scales[slot]) : t.scales[slot][e / t.block];
      return scalar::F32(value) * scalar::F32(scale);
    }
  }

  static __device__ int valid_at(const TensorEntry& t, std::int64_t at) {
    const std::int64_t left = t.numel - at;
    return left >= kChunk ? kChunk : left > 0 ? static_cast<int>(left) : 0;
  }

  // ---- formats with blocks ----

  struct Place {
    std::int64_t first;  // the lane's first chunk
    int apart;           // its second is this much further
    int lanes;           // of a block
    int lane;            // in the block
    std::int64_t block;  // index
  };

  struct Scale {
    float inverse;
    bool finite;
  };

  static __device__ Place place(const TensorEntry& t, std::int64_t at) {
    const int lane = static_cast<int>(threadIdx.x & 31U);
    Place p;
    const int size = t.block > kTile ? kTile : t.block;
    p.lanes = size / (2 * kChunk);
    p.lane = lane & (p.lanes - 1);
    const std::int64_t start = at + (lane & ~(p.lanes - 1)) * (2 * kChunk);
    p.block = start >> (31 - __clz(t.block));
    p.first = start + p.lane * kChunk;
    p.apart = size / 2;
    return p;
  }

  // A whole tile by vectors. False, and nothing written, if an element of the warp's is not in range.
  template <bool kWide>
  __device__ bool tile(const TensorEntry& t, std::int64_t at) const {
    const Place where = place(t, at);
    float s[kStates][2 * kChunk];
    Bounds bounds;
    std::uint32_t words[kStates][2][Codes::kWords];
    float scale[kStates];
    Weights<kKind> p;
    Grads<kWide> g;
    p.template load<0>(t, where.first, where.apart);
    g.template load<0>(t, where.first, where.apart);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      scale[k] = t.scales[k][where.block];
      load_words(t.codes[k], where.first, words[k][0]);
      load_words(t.codes[k], where.first + where.apart, words[k][1]);
    }
    float watch = chunk<0>(t, where, p, g, words, scale, s, bounds);
    asm volatile("" ::
                     : "memory");  // one chunk after the other: side by side they would not fit the registers
    Weights<kKind> second;
    if constexpr (Weights<kKind>::kWide) {
      second.template load<1>(t, where.first, where.apart);
    } else {
      second = p;
    }
    g.template load<1>(t, where.first, where.apart);
    watch += chunk<1>(t, where, second, g, words, scale, s, bounds);
    asm volatile("" ::: "memory");
    if (__any_sync(~0U, !bounds.in_range() || watch != 0.0F)) return false;
    p.template write<0>(t, where.first);
    second.template write<1>(t, where.first + where.apart);
    Scale encoded[kStates];
    scales(t, where, bounds, nullptr, encoded);
    encode_slots<0>(t, where, s, encoded, std::make_integer_sequence<int, kSlots>{});
    encode_slots<1>(t, where, s, encoded, std::make_integer_sequence<int, kSlots>{});
    return true;
  }

  template <int kIndex, bool kWide>
  __device__ float chunk(const TensorEntry& t, const Place& where, Weights<kKind>& p, const Grads<kWide>& g,
                         const std::uint32_t (&words)[kStates][2][Codes::kWords],
                         const float (&scale)[kStates], float (&s)[kStates][2 * kChunk],
                         Bounds& bounds) const {
    decode_slots<kIndex>(words, scale, s, std::make_integer_sequence<int, kSlots>{});
    float weights[kChunk];
    float grads[kChunk];
    p.template unpack<kIndex>(t, weights);
    g.template unpack<kIndex>(t, grads);
    update8(weights, grads, s, kIndex * kChunk, bounds);
    return p.template pack<kIndex>(t, prepared_.round_base, where.first + kIndex * where.apart, weights);
  }

  template <int kIndex, int... kSlot>
  __device__ void decode_slots(const std::uint32_t (&words)[kStates][2][Codes::kWords],
                               const float (&scale)[kStates], float (&s)[kStates][2 * kChunk],
                               std::integer_sequence<int, kSlot...>) const {
    (Codes::template decode<moment(kSlot)>(tables(), words[kSlot][kIndex], s[kSlot] + kIndex * kChunk), ...);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) s[k][kIndex * kChunk + i] *= scale[k];
    }
  }

  template <int kIndex, int... kSlot>
  __device__ void encode_slots(const TensorEntry& t, const Place& where,
                               const float (&s)[kStates][2 * kChunk], const Scale (&scale)[kStates],
                               std::integer_sequence<int, kSlot...>) const {
    const std::int64_t at = where.first + kIndex * where.apart;
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      std::uint32_t words[Codes::kWords];
      encode_words<kOne>(s[kOne] + kIndex * kChunk, scale[kOne], words);
      if constexpr (Codes::kWords == 2) {
        store(t.codes[kOne], at, make_uint2(words[0], words[1]));
      } else {
        store(t.codes[kOne], at / 2, words[0]);
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  template <int kSlot>
  static __device__ void encode_words(const float* s, const Scale& scale, std::uint32_t* words) {
    Codes::template encode<moment(kSlot)>(tables(), s, scale.inverse, words);
    if (!scale.finite) {
#pragma unroll
      for (int w = 0; w < Codes::kWords; ++w) words[w] = 0;
    }
  }

  static __device__ void load_words(const void* codes, std::int64_t at, std::uint32_t* words) {
    if constexpr (Codes::kWords == 2) {
      const auto pair = load<uint2>(codes, at);
      words[0] = pair.x;
      words[1] = pair.y;
    } else {
      words[0] = load<unsigned>(codes, at / 2);
    }
  }

  // Anything else with blocks: ends of tensors, unaligned ones, blocks larger than a tile, rank-1 scales.
  static __device__ __noinline__ void slow_unit(const StepParams& params, const Prepared& prepared,
                                                const TensorEntry& t, std::int64_t at) {
    const int tiles = t.block > kTile ? t.block / kTile : 1;
    const bool measure_only = Codec::kRank1 && params.measure != 0;
    std::uint32_t whole[kStates] = {};  // maxima of a block that is larger than a tile
    if (tiles > 1 || measure_only) {
      Bounds bounds;
      for (int i = 0; i < tiles; ++i) measure(t, prepared, place(t, at + i * kTile), bounds);
      if (measure_only) return;
#pragma unroll
      for (int k = 0; k < kSlots; ++k) whole[k] = reduce_max(bounds.high[k], 32);
    }
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const Place where = place(t, at + i * kTile);
      float s[kStates][2 * kChunk];
      Bounds bounds;
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t e = where.first + c * where.apart;
        float out[kStates * kChunk];
        careful<Codec>(t, prepared, e, valid_at(t, e), true, out);
        for (int j = 0; j < kChunk; ++j) {
          float kept[kStates] = {};
#pragma unroll
          for (int k = 0; k < kSlots; ++k) s[k][c * kChunk + j] = kept[k] = out[k * kChunk + j];
          bounds.add(kept);
        }
      }
      Scale encoded[kStates];
      scales(t, where, bounds, tiles > 1 ? whole : nullptr, encoded);
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t e = where.first + c * where.apart;
        encode_slow(t, e, valid_at(t, e), s, c, encoded, std::make_integer_sequence<int, kSlots>{});
      }
    }
  }

  template <int... kSlot>
  static __device__ void encode_slow(const TensorEntry& t, std::int64_t at, int valid,
                                     const float (&s)[kStates][2 * kChunk], int c,
                                     const Scale (&scale)[kStates], std::integer_sequence<int, kSlot...>) {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      std::uint32_t words[Codes::kWords];
      if constexpr (own_scale(kOne)) {
        float x[kChunk] = {};
        if (valid > 0) scale_by_axes(t, new_scales(t, kOne), at, valid, s[kOne] + c * kChunk, x);
        Codes::template encode<Moment::second>(tables(), x, 1.0F, words);
      } else {
        encode_words<kOne>(s[kOne] + c * kChunk, scale[kOne], words);
        if constexpr (kZeroCode && is_second(kOne)) {
#pragma unroll
          for (int i = 0; i < kChunk; ++i)
            if (s[kOne][c * kChunk + i] == 0.0F) words[i / 4] &= ~(255U << (8 * (i % 4)));
        }
      }
      if constexpr (Codec::kBits == 4) {
        if (valid % 2 == 1) words[0] &= ~(15U << (8 * (valid / 2)));  // an odd end leaves its low nibble zero
      }
      auto* bytes = static_cast<std::uint8_t*>(t.codes[kOne]) + at * Codec::kBits / 8;
#pragma unroll
      for (int i = 0; i < Codec::kBits; ++i) {
        if (i < (valid * Codec::kBits + 7) / 8)
          bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }

  // Moments over their own scales; where that is zero or not finite, zero.
  static __device__ void scale_by_axes(const TensorEntry& t, const float* maxima, std::int64_t at, int valid,
                                       const float* s, float* x) {
    AxisWalk walk(t, at);
    for (int i = 0; i < valid; ++i) {
      const float own = walk.scale(maxima);
      const bool usable = own > 0.0F && __float_as_uint(own) < static_cast<std::uint32_t>(formula::kInf32);
      x[i] = usable ? s[i] * (1.0F / own) : 0.0F;
      if (i + 1 < valid) walk.next();
    }
  }

  // The moments a step would give, without taking it.
  static __device__ void measure(const TensorEntry& t, const Prepared& prepared, const Place& where,
                                 Bounds& bounds) {
#pragma unroll 1
    for (int c = 0; c < 2; ++c) {
      const std::int64_t at = where.first + c * where.apart;
      const int valid = valid_at(t, at);
      if (valid == 0) continue;
      float out[kStates * kChunk];
      careful<Codec>(t, prepared, at, valid, false, out);
      for (int i = 0; i < valid; ++i) {
        float kept[kStates] = {};
        for (int k = 0; k < kSlots; ++k) kept[k] = out[k * kChunk + i];
        bounds.add(kept);
      }
      if constexpr (Codec::kRank1) raise_axes(t, at, valid, out);
    }
  }
  static __device__ void raise_axes(const TensorEntry& t, std::int64_t at, int valid, const float* out) {
    for (int k = 0; k < kSlots; ++k) {
      if (!own_scale(k)) continue;
      AxisWalk walk(t, at);
      for (int i = 0; i < valid; ++i) {
        walk.raise(new_scales(t, k), out[k * kChunk + i]);
        if (i + 1 < valid) walk.next();
      }
    }
  }
  // Second moments follow one another in the workspace.
  static __device__ float* new_scales(const TensorEntry& t, int slot) {
    std::int64_t count = 0;
    if (slot == 2)
      for (int axis = 0; axis < t.ndim; ++axis) count += t.shape[axis];
    return t.new_scales + count;
  }

  static __device__ std::uint32_t reduce_max(float value, int lanes) {
    std::uint32_t bits = __float_as_uint(value);
    for (int o = 1; o < lanes; o *= 2) bits = max(bits, __shfl_xor_sync(~0U, bits, o));
    return bits;
  }

  // Scales of a block from its lanes' maxima, written by its first lanes.
  static __device__ void scales(const TensorEntry& t, const Place& where, const Bounds& bounds,
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
      if (where.lane < 2 && where.first - where.lane * kChunk < t.numel)
        (odd ? t.scales[1] : t.scales[0])[where.block] = scale.scale;
      const float coded = scale.finite ? scale.inverse : -1.0F;
      const float other = __shfl_xor_sync(~0U, coded, 1);
      const float inverse[2] = {odd ? other : coded, odd ? coded : other};
#pragma unroll
      for (int k = 0; k < 2; ++k) out[k] = {inverse[k], inverse[k] >= 0.0F};
    } else {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (own_scale(k)) continue;
        const std::uint32_t bits = whole != nullptr ? whole[k] : reduce_max(bounds.high[k], where.lanes);
        const formula::BlockScale scale = scale_of(bits, Codec::kLargest);
        if (where.lane == 0 && where.first < t.numel) t.scales[k][where.block] = scale.scale;
        out[k] = {scale.inverse, scale.finite};
      }
    }
  }

  // ---- formats without: fp32 and bf16, and small tensors beside another format ----

  using State = std::conditional_t<Codec::kBlocked, codecs::Fp32, Codec>;

  // As `tile`; each chunk is written as soon as it is known to be in range, and what is written is not done
  // again.
  template <bool kWide>
  __device__ bool plain_tile(const TensorEntry& t, std::int64_t at) const {
    if constexpr (Codec::kBlocked) {
      return false;  // beside another format such tensors are small
    } else {
      const std::int64_t first = at + (threadIdx.x & 31U) * kChunk;
      Weights<kKind> p;
      Grads<kWide> g;
      p.template load<0>(t, first, kTile / 2);
      g.template load<0>(t, first, kTile / 2);
      plain_chunk<0>(t, first, p, g);
      p.template load<1>(t, first, kTile / 2);
      g.template load<1>(t, first, kTile / 2);
      plain_chunk<1>(t, first, p, g);
      return true;
    }
  }

  template <int kIndex, bool kWide>
  __device__ void plain_chunk(const TensorEntry& t, std::int64_t first, Weights<kKind>& p,
                              const Grads<kWide>& g) const {
    const std::int64_t at = first + kIndex * (kTile / 2);
    uint4 states[kStates][2];
    float s[kStates][kChunk];
    Bounds bounds;
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      states[k][0] = load<uint4>(t.codes[k], at * (State::kBits / 8));
      if constexpr (State::kBits == 32) states[k][1] = load<uint4>(t.codes[k], at * 4 + 16);
    }
#pragma unroll
    for (int k = 0; k < kSlots; ++k) {
      if constexpr (State::kBits == 32) {
        as_floats(states[k][0], s[k]);
        as_floats(states[k][1], s[k] + 4);
      } else {
        unpack_bf16x8(states[k][0], s[k]);
      }
    }
    float weights[kChunk];
    float grads[kChunk];
    p.template unpack<kIndex>(t, weights);
    g.template unpack<kIndex>(t, grads);
    update8(weights, grads, s, 0, bounds);
    const float watch = p.template pack<kIndex>(t, prepared_.round_base, at, weights);
    bool done = bounds.in_range() && watch == 0.0F;
    if constexpr (!kDivides) {
#pragma unroll
      for (int k = 0; k < kSlots; ++k) done = done && bounds.high[k] <= kLargeSecond;
    }
    if (!done) {
      slow_plain_chunk(prepared_, t, at);
      return;
    }
    p.template write<kIndex>(t, at);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) store_plain<true>(prepared_, t, k, at, kChunk, s[k]);
  }

  static __device__ __noinline__ void slow_plain(const Prepared& prepared, const TensorEntry& t,
                                                 std::int64_t at) {
#pragma unroll 1
    for (int c = 0; c < 2; ++c)
      slow_plain_chunk(prepared, t, at + c * (kTile / 2) + (threadIdx.x & 31U) * kChunk);
  }
  static __device__ __noinline__ void slow_plain_chunk(const Prepared& prepared, const TensorEntry& t,
                                                       std::int64_t at) {
    const int valid = valid_at(t, at);
    float out[kStates * kChunk];
    careful<State>(t, prepared, at, valid, true, out);
#pragma unroll
    for (int k = 0; k < kSlots; ++k) store_plain<false>(prepared, t, k, at, valid, out + k * kChunk);
  }

  template <bool kVector>
  static __device__ void store_plain(const Prepared& prepared, const TensorEntry& t, int slot,
                                     std::int64_t at, int valid, const float* s) {
    if constexpr (State::kBits == 32) {
      if constexpr (kVector) {
        store(t.codes[slot], at * 4, as_words(s));
        store(t.codes[slot], at * 4 + 16, as_words(s + 4));
      } else {
        for (int i = 0; i < valid; ++i)
          static_cast<float*>(t.codes[slot])[at + i] = formula::canonical(scalar::F32(s[i])).v;
      }
    } else {
      std::uint32_t halves[kChunk];
      const bool second = is_second(slot);
      const formula::RoundKey key =
          formula::round_key(prepared.round_base, t.id, 1U + static_cast<std::uint32_t>(slot));
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const scalar::F32 x = formula::canonical(scalar::F32(s[i]));
        scalar::I32 half = formula::float_to_bf16(x);
        if (second) {
          half = formula::float_to_bf16_stochastic(
              x, formula::random16(key, static_cast<std::uint64_t>(t.offset + at), scalar::I32(i)));
          if (x.v > 0.0F) half = max(half, scalar::I32(1));
        }
        halves[i] = half.u() & 0xFFFFU;
      }
      if constexpr (kVector) {
        store(t.codes[slot], at * 2,
              make_uint4(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16,
                         halves[4] | halves[5] << 16, halves[6] | halves[7] << 16));
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i)
          if (i < valid)
            static_cast<std::uint16_t*>(t.codes[slot])[at + i] = static_cast<std::uint16_t>(halves[i]);
      }
    }
  }

  const StepParams& params_;
  const Prepared& prepared_;
  Consts c_;
  const bool in_range_;
};

template <class Algo, class Codec, WeightKind kKind>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ StepParams params) {
  const Prepared& prepared = params.prepared != nullptr ? *params.prepared : params.constants;
  if (prepared.skip != 0) return;
  Packed<Codec>::fill_tables(tables());
  __syncthreads();
  Step<Algo, Codec, kKind> step(params, prepared);
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kThreads / 32);
  for (std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
       unit < params.units; unit += warps) {
    step.run(unit);
  }
}

}  // namespace octavo::cuda
