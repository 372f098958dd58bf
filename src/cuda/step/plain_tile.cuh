// A quick tile of states without blocks: fp32 or bf16, and rules without states.
//
// Elements are independent, so the two halves of a tile are processed one after the other, each as two pieces
// of four elements per lane. A half with an element that is out of range is computed again, element by
// element, before anything of it is written.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/slow_path.cuh"
#include "cuda/step/update.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class StepPlainTile : protected StepUpdate<Algo, Format, kKind> {
  using Base = StepUpdate<Algo, Format, kKind>;

 public:
  using Base::Base;

 protected:
  using Traits = StepTraits<Algo, Format>;
  using Base::consts_of, Base::element, Base::entry, Base::lane_, Base::least_result, Base::prepared_,
      Base::store_weights, Base::update8, Traits::kDivides, Traits::kDividesGradient, Traits::kSlots,
      Traits::kStates, Traits::state_key, typename Base::Arrays, typename Base::Eights, typename Base::Work,
      typename Traits::Bounds, typename Traits::Consts, typename Traits::Plain, typename Traits::QuickPlace;

  // Always returns true: elements that are out of range are handled here.
  template <bool kKnown>
  __device__ bool step_tile(const Work& now) const {
    const QuickPlace where = Base::template place_of<kKnown>(now, entry(now), lane_);
    plain_chunk<0, kKnown>(now, where.first);
    plain_chunk<1, kKnown>(now, where.first + where.apart);
    return true;
  }

  // Steps half a tile. If an element is out of range, all are computed again one by one before anything is
  // written.
  template <int kIndex, bool kKnown>
  __device__ void plain_chunk(const Work& now, std::uint32_t at) const {
    const TensorEntry& t = entry(now);
    float s[kStates][kChunk];
    Bounds bounds;
    load_states<kIndex, 0>(now, t, at, s, std::make_integer_sequence<int, kSlots>{});
    Eights p;
    float weights[kChunk];
    float grads[kChunk];
    Base::template load_weights<kIndex>(now, t, at, p);
    p.template unpack<kKnown>(t, weights);
    Base::template load_grads<kIndex, kKnown>(now, t, at, grads);
    const Consts c = consts_of(t);
    const float low = update8(c, weights, grads, s, 0, bounds);
    const Seen seen = p.template pack<kKnown>(t, prepared_.round_base, at, weights);
    bool good = bounds.in_range(c) && seen.watch == 0.0F;
    if constexpr (kDivides) {
      const float least = least_result(t);
      if ((kDividesGradient ? low : seen.low) < least)
        good = good && Base::template right_weights<kKnown>(t, c, least, p, s, 0);
    }
    if (__any_sync(~0U, !good)) {
      std::int64_t e = element(at);
#pragma unroll 1
      for (int i = 0; i < 2; ++i, e += kQuadApart) {
        // At the end of a tensor the second half tile begins in the first, which is done.
        if (kIndex == 0 || e % kTile >= kTile / 2)
          SlowStep<Algo, Format, kKind>::slow_plain_chunk(prepared_, t, e, kUnit<true>);
      }
      return;
    }
    store_weights(t, at, p);
    store_states(t, at, s, std::make_integer_sequence<int, kSlots>{});
  }

  // Stores to each slot's elements from kTo on.
  template <int kIndex, int kTo, int kStride, int... kSlot>
  __device__ void load_states(const Work& now, const TensorEntry& t, std::uint32_t at,
                              float (&s)[kStates][kStride], std::integer_sequence<int, kSlot...>) const {
    const auto get = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      const auto words =
          Base::template share<kIndex, typename Arrays::template Codes<kOne>>(now, t.codes[kOne], at);
      if constexpr (Traits::template Codec<kOne, Plain>::kBits == 32) {
        as_floats(words, s[kOne] + kTo);
      } else {
        unpack_bf16x8(words_of(words), s[kOne] + kTo);
      }
    };
    (get(std::integral_constant<int, kSlot>{}), ...);
  }
  template <int... kSlot>
  __device__ void store_states(const TensorEntry& t, std::uint32_t at, const float (&s)[kStates][kChunk],
                               std::integer_sequence<int, kSlot...>) const {
    const auto put = [&](auto slot) {
      constexpr int kOne = decltype(slot)::value;
      using Array = typename Arrays::template Codes<kOne>;
      if constexpr (Traits::template Codec<kOne, Plain>::kBits == 32) {
        Array::put(t.codes[kOne], at, as_eight<true>(s[kOne]));
      } else {
        const formula::RoundKey key = state_key(prepared_, t, kOne);
        const std::uint64_t index = index_of<true>(t, at);
        std::uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = 2 * i < 4 ? 2 * i : kQuadApart + 2 * i - 4;
          w[i] = Traits::template narrow_state<kOne>(key, index, e, s[kOne][2 * i]) |
                 Traits::template narrow_state<kOne>(key, index, e + 1, s[kOne][2 * i + 1]) << 16;
        }
        Array::put(t.codes[kOne], at, eight_of<true>(make_uint4(w[0], w[1], w[2], w[3])));
      }
    };
    (put(std::integral_constant<int, kSlot>{}), ...);
  }
};

}  // namespace octavo::cuda
