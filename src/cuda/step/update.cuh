// The rule's formula over a lane's eight elements, in the lane without branches (lane/cuda.cuh).
//
// Its divisions and roots are exact in a range alone, so whoever calls it asks afterwards whether all results
// are right: by the bounds of the moments, which are gathered here, and where a result is small by right8. A
// tile with one that is not is left to the scalar lane, before anything was written.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/fetch.cuh"

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
class StepUpdate : protected StepFetching<Algo, Format, kKind> {
  using Base = StepFetching<Algo, Format, kKind>;

 public:
  using Base::Base;

 protected:
  using Traits = StepTraits<Algo, Format>;
  using Base::c_;
  using Base::prepared_;
  using Traits::is_second;
  using Traits::kDivides;
  using Traits::kDividesGradient;
  using Traits::kHasTrustRatio;
  using Traits::kSlots;
  using Traits::kStates;
  using Traits::numerator;
  using typename Base::Eights;
  using typename Traits::Bounds;
  using typename Traits::Consts;

  // Raw gradients times their factor, with coupled decay: one branch around all of it, because instructions
  // that are predicated cost as much as others.
  __device__ void scale_grads(const float* p, float* g) const {
    if (!c_.coupled && c_.factor == 1.0F) return;
    const formula::Common common = c_;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
  }

  // The constants of a tensor's elements.
  __device__ Consts consts_of(const TensorEntry& t) const {
    Consts c = c_;
    if constexpr (kHasTrustRatio) c.ratio = t.ratio;
    return c;
  }

  // The formula over eight elements whose weights and raw gradients are unpacked; states are in `s`. Returns
  // the smallest result whose numerator is not +0, where only the gradient tells.
  template <int kStride>
  __device__ float update8(const Consts& c, float* p, float* g, float (&s)[kStates][kStride], int first,
                           Bounds& bounds) const {
    return each8<false>(c, p, g, s, first, bounds);
  }
  // What the rule measures of eight elements, in place of the gradients; `s` becomes the new moments.
  template <int kStride>
  __device__ float sum8(float* p, float* g, float (&s)[kStates][kStride], int first, Bounds& bounds) const {
    return each8<true>(c_, p, g, s, first, bounds);
  }
  template <bool kMeasure, int kStride>
  __device__ float each8(const Consts& c, float* p, float* g, float (&s)[kStates][kStride], int first,
                         Bounds& bounds) const {
    scale_grads(p, g);
    float low = kLargeFirst;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      F32 state[kStates];
#pragma unroll
      for (int k = 0; k < kSlots; ++k) state[k] = F32(s[k][first + i]);
      const F32 grad(g[i]);
      float result;
      if constexpr (kMeasure) {
        result = g[i] = Algo::unscaled_update(c, grad, F32(p[i]), state).v;
      } else {
        result = p[i] = Algo::update(c, grad, F32(p[i]), state).v;
      }
#pragma unroll
      for (int k = 0; k < kSlots; ++k) s[k][first + i] = state[k].v;
      if constexpr (kDividesGradient)
        if (__float_as_uint(grad.v) != 0) low = fminf(low, fabsf(result));
    }
    bounds.include8(s, first);
    return low;
  }

  // The least result that is known to be right.
  __device__ float least_result(const TensorEntry& t) const {
    if constexpr (kHasTrustRatio) return prepared_.least_result * fmaxf(fabsf(t.ratio), 1.0F);
    return prepared_.least_result;
  }
  // Whether eight results are right although one of them is small (lane/exact.h), from the new moments.
  template <int kStride>
  __device__ bool right8(const Consts& c, float least, const float* result,
                         const float (&s)[kStates][kStride], int first) const {
    bool right = !kDividesGradient;
    if constexpr (kDivides && !kDividesGradient) {
      const bool usual_eps = c.eps >= kSmallEps;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        F32 state[kStates];
        bool small = false;  // a root could be
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          state[k] = F32(s[k][first + i]);
          if (is_second(k)) small |= state[k].v < kSmallSecond;
        }
        const float divided = numerator(c, F32(0.0F), state);
        const bool zero = __float_as_uint(divided) == 0;
        // Without branches: whatever is not needed is cheaper than they are.
        right &= usual_eps ? zero | (fabsf(result[i]) >= least)
                           : !small & (zero | (fabsf(divided) >= kSmallFirst));
      }
    }
    return right;
  }
  // right8 of packed weights.
  template <bool kKnown, int kStride>
  __device__ bool right_weights(const TensorEntry& t, const Consts& c, float least, const Eights& packed,
                                const float (&s)[kStates][kStride], int first) const {
    float weights[kChunk];
    packed.template unpack<kKnown>(t, weights);
    return right8(c, least, weights, s, first);
  }
};

}  // namespace octavo::cuda
