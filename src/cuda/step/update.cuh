// The rule's formula over a lane's eight elements, in the lane without branches (lane/cuda.cuh).
//
// Its divisions and roots are exact only within a range. The caller must verify the results: by the bounds of
// the moments, which are computed here, and by right8 if a result is small. A tile with a wrong result falls
// back to the scalar lane before anything was written.
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
  using Base::c_, Base::prepared_, Traits::is_second, Traits::kDivides, Traits::kDividesGradient,
      Traits::kHasTrustRatio, Traits::kSlots, Traits::kStates, Traits::numerator, typename Base::Eights,
      typename Traits::Bounds, typename Traits::Consts;

  // Multiplies raw gradients by their factor and adds coupled decay, with one branch around all of it,
  // because predicated instructions cost as much as others.
  __device__ void scale_grads(const float* p, float* g) const {
    if (!c_.coupled && c_.factor == 1.0F) return;
    const formula::Common common = c_;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) g[i] = formula::gradient(common, F32(g[i]), F32(p[i])).v;
  }

  // Returns the constants of a tensor's elements.
  __device__ Consts consts_of(const TensorEntry& t) const {
    Consts c = c_;
    if constexpr (kHasTrustRatio) c.ratio = t.ratio;
    return c;
  }

  // Applies the formula to eight elements whose weights and raw gradients are unpacked; states are in `s`.
  // Returns the smallest result whose numerator is not +0, if the gradient is the numerator.
  template <int kStride>
  __device__ float update8(const Consts& c, float* p, float* g, float (&s)[kStates][kStride], int first,
                           Bounds& bounds) const {
    return each8<false>(c, p, g, s, first, bounds);
  }
  // Replaces the gradients by the rule's unscaled updates of eight elements; `s` becomes the new moments.
  template <int kStride>
  __device__ float sum8(float* p, float* g, float (&s)[kStates][kStride], int first, Bounds& bounds) const {
    return each8<true>(c_, p, g, s, first, bounds);
  }
  template <bool kSumsOnly, int kStride>
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
      if constexpr (kSumsOnly) {
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

  // Returns the smallest result that is certainly right.
  __device__ float least_result(const TensorEntry& t) const {
    if constexpr (kHasTrustRatio) return prepared_.least_result * fmaxf(fabsf(t.ratio), 1.0F);
    return prepared_.least_result;
  }
  // Returns true if eight results are right although one of them is small (lane/exact.h), from the new
  // moments.
  template <int kStride>
  __device__ bool right8(const Consts& c, float least, const float* result,
                         const float (&s)[kStates][kStride], int first) const {
    bool right = !kDividesGradient;
    if constexpr (kDivides && !kDividesGradient) {
      const bool usual_eps = c.eps >= kSmallEps;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        F32 state[kStates];
        bool small = false;  // a root could be small
#pragma unroll
        for (int k = 0; k < kSlots; ++k) {
          state[k] = F32(s[k][first + i]);
          if (is_second(k)) small |= state[k].v < kSmallSecond;
        }
        const float divided = numerator(c, F32(0.0F), state);
        const bool zero = __float_as_uint(divided) == 0;
        // Computed without branches, which cost more than unneeded instructions.
        right &= usual_eps ? zero | (fabsf(result[i]) >= least)
                           : !small & (zero | (fabsf(divided) >= kSmallFirst));
      }
    }
    return right;
  }
  // Calls right8 for packed weights.
  template <bool kKnown, int kStride>
  __device__ bool right_weights(const TensorEntry& t, const Consts& c, float least, const Eights& packed,
                                const float (&s)[kStates][kStride], int first) const {
    float weights[kChunk];
    packed.template unpack<kKnown>(t, weights);
    return right8(c, least, weights, s, first);
  }
};

}  // namespace octavo::cuda
