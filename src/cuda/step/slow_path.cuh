// The step, element by element, in the scalar lane. It handles ends of tensors that are not complete chunks,
// unaligned parameters and states, rows that vectors would cross, small tensors with fp32 states in the
// launch of another format, and all elements that the quick path found to be out of range.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/rank1/scales.cuh"
#include "cuda/step/traits.cuh"
#include "cuda/step/trust_ratio_sums.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class SlowStep : StepTraits<Algo, Format> {
  using Traits = StepTraits<Algo, Format>;
  using Traits::for_slots, Traits::kSlots, Traits::kStates, Traits::lane, Traits::moment, Traits::own_index,
      Traits::own_scale, Traits::place, Traits::reduce_max, Traits::state_key, typename Traits::Bounds,
      typename Traits::Codes, typename Traits::Consts, typename Traits::Place, typename Traits::Plain,
      typename Traits::Scale;

 public:
  // Steps a unit from element `at` on.
  static __device__ void run(const Prepared& prepared, const TensorEntry& t, std::int64_t at) {
    if constexpr (Format::kBlocked) {
      if (t.plain == 0) {
        slow_unit(prepared, t, at);
        return;
      }
    }
    slow_plain(prepared, t, at);
  }

  // Computes the sums of the unit's tiles in the first of two passes, sixteen neighbours per lane.
  static __device__ __noinline__ void sum_unit(const StepParams& params, const Prepared& prepared,
                                               const TensorEntry& t, std::int64_t at) {
    const std::int64_t end = min(t.numel, at + (t.block > kTile ? t.block : kTile));
#pragma unroll 1
    for (; at < end; at += kTile) {
      double weights[1] = {0.0};
      double updates[1] = {0.0};
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t first = at + lane() * 2 * kChunk + c * kChunk;
        const formula::Sums sums = Format::kBlocked && t.plain == 0 ? sum_chunk<Format>(t, prepared, first)
                                                                    : sum_chunk<Plain>(t, prepared, first);
        weights[0] += sums.weight;
        updates[0] += sums.update;
      }
      write_sums(weights, updates, 32, params.sums + t.first_tile + at / kTile);
    }
  }

  // Steps two chunks per lane, each of another row of a panel: their blocks are in t.block / 8 neighbouring
  // lanes. `there`: the row exists.
  static __device__ __noinline__ void panel_tile(const Prepared& prepared, const TensorEntry& t,
                                                 const std::int64_t (&at)[2], const bool (&there)[2]) {
    const int lanes = t.block / kChunk;
#pragma unroll 1
    for (int c = 0; c < 2; ++c) {
      const int valid = there[c] ? kChunk : 0;
      float out[kStates * kChunk];
      careful<Format>(t, prepared, at[c], valid, true, out);
      __syncwarp();  // every lane has read the old scale before one lane writes the new one
      Scale encoded[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) {
        if (own_scale(k)) continue;
        float high = 0.0F;
        for (int i = 0; i < kChunk; ++i) high = max_nan(high, fabsf(out[k * kChunk + i]));
        const formula::BlockScale scale = scale_of(reduce_max(high, lanes), Traits::largest(k));
        if (lane() % lanes == 0 && there[c]) t.scales[k][at[c] / t.block] = scale.scale;
        encoded[k] = {scale.inverse, scale.finite};
      }
      for_slots([&](auto slot) {
        encode_slow<slot()>(prepared, t, at[c], valid, out + slot() * kChunk, encoded[slot()]);
      });
    }
  }

  // Steps up to `most` neighbouring elements of a tensor without blocks.
  static __device__ __noinline__ void slow_plain_chunk(const Prepared& prepared, const TensorEntry& t,
                                                       std::int64_t at, int most) {
    const int valid = min(valid_at(t, at), most);
    float out[kStates * kChunk];
    careful<Plain>(t, prepared, at, valid, true, out);
    for_slots([&](auto slot) { store_plain<slot()>(prepared, t, at, valid, out + slot() * kChunk); });
  }

 private:
  // Steps one element at a time in the scalar lane, for any alignment, range and number of elements. Moments
  // go to `out`, with zeros beyond `valid`.
  template <class Stored>
  static __device__ __noinline__ void careful(const TensorEntry& t, const Prepared& prepared, std::int64_t at,
                                              int valid, bool write, float* out) {
    Consts c = *reinterpret_cast<const Consts*>(prepared.consts);
    if constexpr (formula::kHasTrustRatio<Algo>) c.ratio = t.ratio;
    for (int i = 0; i < kChunk; ++i) {
      scalar::F32 s[kStates];
      if (i < valid) {
        const std::int64_t e = at + i;
        for_slots([&](auto slot) { s[slot()] = load_state<slot(), Stored>(t, e); });
        const scalar::F32 before(load_weight<kKind>(t, e));
        const scalar::F32 raw(load_one(t.grad, t.grad_dtype, e));
        const scalar::F32 p = Algo::update(c, formula::gradient(c, raw, before), before, s);
        if (write) store_weight<kKind>(t, prepared.round_base, e, p.v);
      }
#pragma unroll
      for (int k = 0; k < kSlots; ++k) out[k * kChunk + i] = s[k].v;
    }
  }

  // Returns the part of eight elements in the sums.
  template <class Stored>
  static __device__ __noinline__ formula::Sums sum_chunk(const TensorEntry& t, const Prepared& prepared,
                                                         std::int64_t at) {
    const Consts c = *reinterpret_cast<const Consts*>(prepared.consts);
    const int valid = valid_at(t, at);
    float weights[kChunk] = {};
    float updates[kChunk] = {};
    for (int i = 0; i < valid; ++i) {
      scalar::F32 s[kStates];
      for_slots([&](auto slot) { s[slot()] = load_state<slot(), Stored>(t, at + i); });
      const scalar::F32 p(load_weight<kKind>(t, at + i));
      const scalar::F32 raw(load_one(t.grad, t.grad_dtype, at + i));
      weights[i] = p.v;
      updates[i] = Algo::unscaled_update(c, formula::gradient(c, raw, p), p, s).v;
    }
    return {squares8(weights), squares8(updates)};
  }

  template <int kSlot, class Stored>
  static __device__ scalar::F32 load_state(const TensorEntry& t, std::int64_t e) {
    constexpr Moment kMoment = moment(kSlot);
    using Codec = typename Stored::template Codec<kMoment>;
    if constexpr (Codec::kScale != ScalePolicy::none) {
      const std::uint32_t code = load_code<Codec::kBits>(static_cast<const std::uint8_t*>(t.codes[kSlot]), e);
      const float value = kValues<typename Stored::template Map<kMoment>, kMoment>.value[code];
      float scale;
      if constexpr (own_scale(kSlot)) {
        scale = Rank1Element(t, e).scale(own_index(kSlot));
      } else {
        scale = t.scales[kSlot][e / t.block];
      }
      return scalar::F32(value) * scalar::F32(scale);
    } else if constexpr (Codec::kBits == 32) {
      return static_cast<const float*>(t.codes[kSlot])[e];
    } else {
      return formula::bf16_to_float(scalar::I32(static_cast<const std::uint16_t*>(t.codes[kSlot])[e]));
    }
  }

  static __device__ int valid_at(const TensorEntry& t, std::int64_t at) {
    const std::int64_t left = t.numel - at;
    return left >= kChunk ? kChunk : left > 0 ? static_cast<int>(left) : 0;
  }

  // Steps all other units with blocks: ends of tensors, unaligned tensors, blocks larger than a tile, rank-1
  // scales.
  static __device__ __noinline__ void slow_unit(const Prepared& prepared, const TensorEntry& t,
                                                std::int64_t at) {
    const int tiles = t.block > kTile ? t.block / kTile : 1;
    std::uint32_t whole[kStates] = {};  // maxima of a block that is larger than a tile
    if (tiles > 1) {
      Bounds bounds;
      for (int i = 0; i < tiles; ++i)
        find_bounds(t, prepared, at + i * kTile, place(t, at + i * kTile), bounds);
#pragma unroll
      for (int k = 0; k < kSlots; ++k) whole[k] = reduce_max(bounds.high[k], 32);
    }
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const std::int64_t tile_at = at + i * kTile;
      const Place where = place(t, tile_at);
      float s[kStates][2 * kChunk];
      Bounds bounds;
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t e = tile_at + where.first + c * where.apart;
        float out[kStates * kChunk];
        careful<Format>(t, prepared, e, valid_at(t, e), true, out);
        for (int j = 0; j < kChunk; ++j) {
          float kept[kStates] = {};
#pragma unroll
          for (int k = 0; k < kSlots; ++k) s[k][c * kChunk + j] = kept[k] = out[k * kChunk + j];
          bounds.include(kept);
        }
      }
      Scale encoded[kStates];
      const std::int64_t block_at = tiles > 1 ? at : tile_at + where.first - where.lane * kChunk;
      // A block's scale changes with its last tile, because earlier tiles are decoded by the old one.
      const bool last = i == tiles - 1 && block_at < t.numel;
      __syncwarp();  // every lane has read the old scale before one lane writes the new one
      Traits::template scales<false>(t, where, last, bounds, tiles > 1 ? whole : nullptr, encoded);
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        const std::int64_t e = tile_at + where.first + c * where.apart;
        for_slots([&](auto slot) {
          encode_slow<slot()>(prepared, t, e, valid_at(t, e), s[slot()] + c * kChunk, encoded[slot()]);
        });
      }
    }
  }

  template <int kSlot>
  static __device__ void encode_slow(const Prepared& prepared, const TensorEntry& t, std::int64_t at,
                                     int valid, const float* s, const Scale& scale) {
    constexpr int kBits = Traits::template Codec<kSlot>::kBits;
    constexpr int kZero = Traits::template kZeroCode<kSlot>;
    std::uint32_t words[Traits::template kWords<kSlot>];
    if constexpr (own_scale(kSlot)) {
      static_assert(kZero < 0, "rank-1 scales are written for maps without zero, whose lowest code is 0");
      float x[kChunk] = {};
      for (int i = 0; i < valid; ++i) x[i] = Rank1Element(t, at + i).over(own_index(kSlot), s[i]);
      Codes::template encode<moment(kSlot)>(tables(), x, 1.0F, words);
    } else if constexpr (Traits::template kStochastic<kSlot>) {
      const std::uint64_t index = static_cast<std::uint64_t>(t.offset + at);
      const auto high = static_cast<std::uint32_t>(index >> 32);
      const formula::RoundKey key = Traits::code_key(prepared, t, kSlot);
      std::uint32_t random[kChunk];
      random_words(key, high, formula::high_word(key, high), index, random);
      Codes::template encode<moment(kSlot), kSlot>(s, scale.inverse, random, words);
      if (!scale.finite) {
#pragma unroll
        for (std::uint32_t& word : words) word = 0;
      }
    } else {
      Traits::template encode_words<kSlot>(s, scale, words);
      if constexpr (kZero >= 0)
        if (scale.finite) Traits::template put_zeros<kSlot>(s, words);  // otherwise all codes are 0
    }
    if constexpr (kBits < 8) {  // the bits after the end in its last byte are zero
#pragma unroll
      for (int i = 1; i < kChunk; ++i)
        if (i >= valid) clear_code<kBits>(words, i);
    }
    auto* bytes = static_cast<std::uint8_t*>(t.codes[kSlot]) + at * kBits / 8;
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      if (i < (valid * kBits + 7) / 8) bytes[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
    }
  }

  // Computes the moments of a step without applying it.
  static __device__ void find_bounds(const TensorEntry& t, const Prepared& prepared, std::int64_t tile_at,
                                     const Place& where, Bounds& bounds) {
#pragma unroll 1
    for (int c = 0; c < 2; ++c) {
      const std::int64_t at = tile_at + where.first + c * where.apart;
      const int valid = valid_at(t, at);
      if (valid == 0) continue;
      float out[kStates * kChunk];
      careful<Format>(t, prepared, at, valid, false, out);
      for (int i = 0; i < valid; ++i) {
        float kept[kStates] = {};
        for (int k = 0; k < kSlots; ++k) kept[k] = out[k * kChunk + i];
        bounds.include(kept);
      }
    }
  }
  static __device__ __noinline__ void slow_plain(const Prepared& prepared, const TensorEntry& t,
                                                 std::int64_t at) {
#pragma unroll 1
    for (int c = 0; c < 2; ++c) slow_plain_chunk(prepared, t, at + c * (kTile / 2) + lane() * kChunk, kChunk);
  }
  template <int kSlot>
  static __device__ void store_plain(const Prepared& prepared, const TensorEntry& t, std::int64_t at,
                                     int valid, const float* s) {
    for (int i = 0; i < valid; ++i) {
      if constexpr (Traits::template Codec<kSlot, Plain>::kBits == 32) {
        static_cast<float*>(t.codes[kSlot])[at + i] = formula::canonical(scalar::F32(s[i])).v;
      } else {
        static_cast<std::uint16_t*>(t.codes[kSlot])[at + i] =
            static_cast<std::uint16_t>(Traits::template narrow_state<kSlot>(
                state_key(prepared, t, kSlot), static_cast<std::uint64_t>(t.offset + at), i, s[i]));
      }
    }
  }
};

}  // namespace octavo::cuda
