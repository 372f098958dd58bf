// A quick tile of blocks with scales: decode, formula, maximum, encode, store, without leaving registers.
//
// A block of 16 * G elements belongs to G neighbouring lanes. A lane has two chunks of eight elements, the
// second half a block after the first, so that neighbouring lanes access neighbouring bytes. A warp processes
// a block that is larger than a tile twice. Nothing is written before all lanes have verified their results,
// and a block's scale is written only after its last tile was decoded by the old one.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/rank1/scales.cuh"
#include "cuda/step/update.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class StepBlockTile : protected StepUpdate<Algo, Format, kKind> {
  using Base = StepUpdate<Algo, Format, kKind>;

 public:
  using Base::Base;

 protected:
  using Traits = StepTraits<Algo, Format>;
  using Base::consts_of, Base::entry, Base::fetch_other, Base::kEnd, Base::kFetches, Base::kLarge,
      Base::kUnaligned, Base::lane_, Base::least_result, Base::prepared_, Base::scale_of_block,
      Base::sort_grads, Base::store_weights, Base::update8, Traits::kCodesZero, Traits::kDivides,
      Traits::kDividesGradient, Traits::kSlots, Traits::kStates, Traits::moment, Traits::own_index,
      Traits::own_scale, typename Base::Arrays, typename Base::Eights, typename Base::Work,
      typename Traits::Bounds, typename Traits::Codes, typename Traits::Consts, typename Traits::QuickPlace,
      typename Traits::Scale;

  // Returns false if an element of the warp is out of range; then nothing was written.
  template <bool kKnown>
  __device__ bool step_tile(Work& now) const {
    if constexpr (kKnown) {
      Large none;
      return block_tile<true>(now, none);
    } else {
      return block_tiles(now);
    }
  }

  // A block that is larger than a tile is processed twice: the first time finds its maximum, the second
  // writes its tiles. This state is in memory, because registers are for the tiles.
  struct Large {
    std::uint32_t unit, flags, first, tiles, tile;
    bool finds_maximum;
    float high[kStates];
  };
  static __device__ __noinline__ void begin(Large& large, const TensorEntry& t, std::uint32_t unit,
                                            std::uint32_t flags) {
    large.unit = unit;
    large.flags = flags;
    large.first = unit * (static_cast<std::uint32_t>(t.block) / kTile);
    const std::int64_t left = t.numel - std::int64_t{large.first} * kTile;
    large.tiles = static_cast<std::uint32_t>((min(left, std::int64_t{t.block}) + kTile - 1) / kTile);
    large.tile = 0;
    large.finds_maximum = true;
    for (float& high : large.high) high = 0.0F;
  }
  // Moves to the next tile, or from the last to the first again. Returns true if there is more to do.
  static __device__ __noinline__ bool advance(Large& large) {
    if (++large.tile < large.tiles) return true;
    large.tile = 0;
    large.finds_maximum = !large.finds_maximum;
    return !large.finds_maximum;
  }
  // Returns the largest moment of the block so far.
  static __device__ __noinline__ float raise(Large& large, int slot, float high) {
    return large.high[slot] = max_nan(large.high[slot], high);
  }
  __device__ bool block_tiles(Work& now) const {
    Large large;
    if ((now.flags & kLarge) != 0) begin(large, entry(now), now.index, now.flags);
    bool good;
    bool more;
    do {
      if ((now.flags & kLarge) != 0) {
        now.index = large.first + large.tile;
        if (entry(now).numel < (now.index + std::int64_t{1}) * kTile) now.flags |= kEnd;
        if constexpr (kFetches) {
          fetch_other(entry(now), now, lane_);
          end_of_copies();
          wait_all_copies();
          if ((now.flags & kUnaligned) != 0) sort_grads(entry(now), now, lane_);
        }
      }
      good = block_tile<false>(now, large);
      more = (now.flags & kLarge) != 0 && good;
      if (more) more = advance(large);
      if ((now.flags & kLarge) != 0) now.flags = large.flags;
    } while (more);
    if ((now.flags & kLarge) != 0) now.index = large.unit;
    return good;
  }

  template <bool kKnown>
  __device__ bool block_tile(const Work& now, [[maybe_unused]] Large& large) const {
    const TensorEntry& t = entry(now);
    const QuickPlace where = Base::template place_of<kKnown>(now, t, lane_);
    const std::uint32_t first = where.first;
    float scale[kStates];
#pragma unroll
    for (int k = 0; k < kSlots; ++k)
      if (!own_scale(k)) scale[k] = scale_of_block(now, k, where.block);
    float s[kStates][2 * kChunk];
    Bounds bounds;
    Eights p[2];
    const Seen one = chunk<0, kKnown>(now, first, scale, p[0], s, bounds);
    // The chunks are processed one after the other, because both at once would not fit into the registers.
    asm volatile("" ::: "memory");
    const Seen two = chunk<1, kKnown>(now, first + where.apart, scale, p[1], s, bounds);
    const Consts c = consts_of(t);
    bool good = bounds.in_range(c) && one.watch + two.watch == 0.0F;
    if constexpr (kDivides) {
      const float least = least_result(t);
      if (fminf(one.low, two.low) < least)
        good = good && Base::template right_weights<kKnown>(t, c, least, p[0], s, 0) &&
               Base::template right_weights<kKnown>(t, c, least, p[1], s, kChunk);
    }
    if (__any_sync(~0U, !good)) return false;
    bool last = true;
    if constexpr (!kKnown && !Format::kRank1) {
      if ((now.flags & kLarge) != 0) {
#pragma unroll
        for (int k = 0; k < kSlots; ++k) bounds.high[k] = raise(large, k, bounds.high[k]);
        if (large.finds_maximum) return true;
        last = large.tile + 1 == large.tiles;  // earlier tiles are decoded by the old scale
      }
    }
    store_weights(t, first, p[0]);
    store_weights(t, first, p[1], where.apart);
    Scale encoded[kStates];
    Traits::template scales<true>(t, where, last, bounds, nullptr, encoded);
    if constexpr (Traits::template kStochastic<0>) {
      encode_randomly(t, where, s, encoded, std::make_integer_sequence<int, kSlots>{});
    } else {
      const bool zeros = kCodesZero && __float_as_uint(bounds.low_second) == 0;
      encode_slots(t, where, s, encoded, zeros, std::make_integer_sequence<int, kSlots>{});
    }
    return true;
  }

  template <int kIndex, bool kKnown>
  __device__ Seen chunk(const Work& now, std::uint32_t at, const float (&scale)[kStates], Eights& p,
                        float (&s)[kStates][2 * kChunk], Bounds& bounds) const {
    const TensorEntry& t = entry(now);
    decode_slots<kIndex>(now, at, scale, s, std::make_integer_sequence<int, kSlots>{});
    float weights[kChunk];
    float grads[kChunk];
    Base::template load_weights<kIndex>(now, t, at, p);
    p.template unpack<kKnown>(t, weights);
    Base::template load_grads<kIndex, kKnown>(now, t, at, grads);
    const float low = update8(consts_of(t), weights, grads, s, kIndex * kChunk, bounds);
    Seen seen = p.template pack<kKnown>(t, prepared_.round_base, at, weights);
    if constexpr (kDividesGradient) seen.low = low;
    return seen;
  }

  template <int kIndex, int... kSlot>
  __device__ void decode_slots(const Work& now, std::uint32_t at, const float (&scale)[kStates],
                               float (&s)[kStates][2 * kChunk], std::integer_sequence<int, kSlot...>) const {
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      const auto words = Base::template share<kIndex, typename Arrays::template Codes<kOne>>(
          now, entry(now).codes[kOne], at);
      float* to = s[kOne] + kIndex * kChunk;
      Codes::template decode<moment(kOne)>(tables(), reinterpret_cast<const std::uint32_t*>(&words), to);
      if constexpr (own_scale(kOne)) {
        Rank1Chunk(entry(now), at).decode(own_index(kOne), to);
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) to[i] *= scale[kOne];
      }
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }

  // Encodes both chunks of every moment. `zeros`: a second moment may be zero.
  template <int... kSlot>
  static __device__ void encode_slots(const TensorEntry& t, const QuickPlace& where,
                                      const float (&s)[kStates][2 * kChunk], const Scale (&scale)[kStates],
                                      bool zeros, std::integer_sequence<int, kSlot...>) {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      typename Array::Share words[2];
      std::uint32_t* const codes[] = {reinterpret_cast<std::uint32_t*>(&words[0]),
                                      reinterpret_cast<std::uint32_t*>(&words[1])};
#pragma unroll
      for (int c = 0; c < 2; ++c)
        encode_chunk<kOne>(t, where.first + c * where.apart, s[kOne] + c * kChunk, scale[kOne], codes[c]);
      if constexpr (Traits::template kZeroCode<kOne> >= 0) {
        if (zeros) {
#pragma unroll
          for (int c = 0; c < 2; ++c) Traits::template put_zeros<kOne>(s[kOne] + c * kChunk, codes[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) Array::put(t.codes[kOne], where.first, words[c], c * where.apart);
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }
  // Encodes both chunks of every moment with stochastic rounding. Two slots share the random words of a
  // chunk.
  template <int... kSlot>
  __device__ void encode_randomly(const TensorEntry& t, const QuickPlace& where,
                                  const float (&s)[kStates][2 * kChunk], const Scale (&scale)[kStates],
                                  std::integer_sequence<int, kSlot...>) const {
    typename Arrays::template Codes<0>::Share words[kStates][2];
    const std::uint64_t first = index_of<Arrays::kQuads>(t, where.first);
    const auto high = static_cast<std::uint32_t>(first >> 32);
    const auto encode_pair = [&](auto slot) {
      constexpr int kEven = decltype(slot)::value;
      const formula::RoundKey key = Traits::code_key(prepared_, t, kEven);
      const std::uint32_t second = formula::high_word(key, high);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        std::uint32_t random[kChunk];
        random_words(key, high, second, index_of<Arrays::kQuads>(t, where.first + c * where.apart), random);
        const auto put = [&](auto one) {
          constexpr int kOne = decltype(one)::value;
          if constexpr (kOne < kSlots) {
            static_assert(std::is_same_v<typename Arrays::template Codes<kOne>::Share,
                                         typename Arrays::template Codes<0>::Share>);
            Codes::template encode<moment(kOne), kOne>(s[kOne] + c * kChunk, scale[kOne].inverse, random,
                                                       reinterpret_cast<std::uint32_t*>(&words[kOne][c]));
          }
        };
        put(std::integral_constant<int, kEven>{});
        put(std::integral_constant<int, kEven + 1>{});
      }
    };
    const auto encode_even = [&](auto slot) {
      if constexpr (decltype(slot)::value % 2 == 0) encode_pair(slot);
    };
    (encode_even(std::integral_constant<int, kSlot>{}), ...);
    const auto store = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
#pragma unroll
      for (int c = 0; c < 2; ++c)
        Arrays::template Codes<kOne>::put(t.codes[kOne], where.first, words[kOne][c], c * where.apart);
    };
    (store(std::integral_constant<int, kSlot>{}), ...);
  }
  template <int kSlot>
  static __device__ void encode_chunk(const TensorEntry& t, std::uint32_t at, const float* s,
                                      const Scale& scale, std::uint32_t* codes) {
    if constexpr (own_scale(kSlot)) {
      float x[kChunk];
      Rank1Chunk(t, at).over(own_index(kSlot), s, x);
      Codes::template encode<moment(kSlot)>(tables(), x, 1.0F, codes);
    } else {
      Codes::template encode<moment(kSlot)>(tables(), s, scale.inverse, codes);
    }
  }
};

}  // namespace octavo::cuda
