// A quick tile in the first pass of a rule with a trust ratio: the sums of squares of weights and of updates,
// by the tree of formula/trust_ratio.h. It computes the values of the second pass and writes only the sums.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/block_tile.cuh"
#include "cuda/step/plain_tile.cuh"
#include "cuda/step/trust_ratio_sums.cuh"

namespace octavo::cuda {

// The quick tile of a format.
template <class Algo, class Format, WeightKind kKind>
using StepTile = std::conditional_t<Format::kBlocked, StepBlockTile<Algo, Format, kKind>,
                                    StepPlainTile<Algo, Format, kKind>>;

template <class Algo, class Format, WeightKind kKind>
class StepTrustRatio : protected StepTile<Algo, Format, kKind> {
  using Base = StepTile<Algo, Format, kKind>;

 public:
  using Base::Base;

 protected:
  using Traits = StepTraits<Algo, Format>;
  using Base::c_, Base::entry, Base::first_of, Base::kHalfTile, Base::lane_, Base::params_, Base::prepared_,
      Base::right8, Base::scale_of_block, Base::sum8, Traits::kDivides, Traits::kDividesGradient,
      Traits::kSlots, Traits::kStates, Traits::own_scale, typename Base::Eights, typename Base::Work,
      typename Traits::Bounds, typename Traits::QuickPlace;

  // Returns false if an element of the warp is out of range; then nothing was written.
  template <bool kKnown>
  __device__ bool sum_tile(const Work& now) const {
    const TensorEntry& t = entry(now);
    constexpr int kParts = Format::kBlocked ? 2 : 4;
    double weights[kParts];
    double updates[kParts];
    Bounds bounds;
    int lanes = 32;
    bool right = true;
    if constexpr (Format::kBlocked) {
      const QuickPlace where = Base::template place_of<kKnown>(now, t, lane_);
      lanes = static_cast<int>(where.lanes);
      float scale[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k)
        if (!own_scale(k)) scale[k] = scale_of_block(now, k, where.block);
      right = sum_chunk<0, kKnown>(now, where.first, scale, weights, updates, bounds);
      asm volatile("" ::: "memory");  // one after the other, as in block_tile.cuh
      right &= sum_chunk<1, kKnown>(now, where.first + where.apart, scale, weights, updates, bounds);
    } else {
      const float scale[kStates] = {};
      const std::uint32_t first = first_of(now, lane_);
      right = sum_chunk<0, kKnown>(now, first, scale, weights, updates, bounds);
      right &= sum_chunk<1, kKnown>(now, first + kHalfTile, scale, weights, updates, bounds);
    }
    if (__any_sync(~0U, !right || !bounds.in_range(c_))) return false;
    write_sums(weights, updates, lanes, params_.sums + t.first_tile + now.index);
    return true;
  }

  template <int kIndex, bool kKnown, int kParts>
  __device__ bool sum_chunk(const Work& now, std::uint32_t at, const float (&scale)[kStates],
                            double (&weights)[kParts], double (&updates)[kParts], Bounds& bounds) const {
    const TensorEntry& t = entry(now);
    float s[kStates][2 * kChunk];
    if constexpr (Format::kBlocked) {
      Base::template decode_slots<kIndex>(now, at, scale, s, std::make_integer_sequence<int, kSlots>{});
    } else {
      Base::template load_states<kIndex, kIndex * kChunk>(now, t, at, s,
                                                          std::make_integer_sequence<int, kSlots>{});
    }
    float p[kChunk];
    float g[kChunk];
    Eights packed;
    Base::template load_weights<kIndex>(now, t, at, packed);
    packed.template unpack<kKnown>(t, p);
    Base::template load_grads<kIndex, kKnown>(now, t, at, g);
    float low = sum8(p, g, s, kIndex * kChunk, bounds);
    if constexpr (!kDividesGradient && kDivides) low = low8(g);
    const bool right =
        low >= prepared_.least_result || right8(c_, prepared_.least_result, g, s, kIndex * kChunk);
    if constexpr (Format::kBlocked) {
      weights[kIndex] = squares8(p);
      updates[kIndex] = squares8(g);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[2 * kIndex + half] = squares4(p + 4 * half);
        updates[2 * kIndex + half] = squares4(g + 4 * half);
      }
    }
    return right;
  }
};

}  // namespace octavo::cuda
