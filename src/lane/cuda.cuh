// The lane of a CUDA thread for operands that are in range. It has the same values as scalar::F32, but its
// division and square root have no branch: they are the sequences of IEEE results without the check for
// operands whose intermediate results would overflow or lose bits. So a caller must check, once for many
// elements, that the operands are in range (lane/exact.h), and otherwise use the scalar lane.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/exact.h"
#include "lane/scalar.h"

namespace octavo::cuda {

struct F32 {
  float v;
  __device__ F32(float x = 0.0F) : v(x) {}  // NOLINT(google-explicit-constructor)
};

__device__ inline F32 operator+(F32 a, F32 b) { return a.v + b.v; }
__device__ inline F32 operator-(F32 a, F32 b) { return a.v - b.v; }
__device__ inline F32 operator*(F32 a, F32 b) { return a.v * b.v; }
__device__ inline F32 fma(F32 a, F32 b, F32 c) { return __fmaf_rn(a.v, b.v, c.v); }
__device__ inline scalar::Mask operator<(F32 a, F32 b) { return {a.v < b.v}; }
__device__ inline scalar::Mask operator>(F32 a, F32 b) { return {a.v > b.v}; }
__device__ inline scalar::Mask is_nan(F32 a) { return {a.v != a.v}; }
__device__ inline F32 select(scalar::Mask m, F32 yes, F32 no) { return m.v ? yes : no; }

// Divides by an estimate of the reciprocal, one Newton step, and a quotient corrected by its exact remainder.
// Compilers correct twice. Over all 2^46 pairs of mantissas the second correction changes nothing
// (LaneCuda.AllPairsOfMantissas with OCTAVO_TEST_FULL=1). A numerator of -0 gives +0.
__device__ inline F32 operator/(F32 a, F32 b) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b.v));
  y = __fmaf_rn(y, __fmaf_rn(-b.v, y, 1.0F), y);
  const float q = a.v * y;
  return __fmaf_rn(y, __fmaf_rn(-b.v, q, a.v), q);
}

// A square root times 2^40: its radicand was multiplied by 2^80, so that its remainder is exact even if it is
// small. The factor is removed from the number that the root is multiplied by or added to, which costs
// nothing if that is a constant.
struct Root {
  static constexpr float kUnit = 0x1p-40F;
  float v;
  __device__ operator F32() const { return v * kUnit; }  // NOLINT(google-explicit-constructor)
};
__device__ inline F32 fma(Root a, F32 b, F32 c) { return __fmaf_rn(a.v, b.v * Root::kUnit, c.v); }
__device__ inline F32 operator+(Root a, F32 b) { return __fmaf_rn(a.v, Root::kUnit, b.v); }

// Computes an estimate of the reciprocal root, and a root corrected by its exact remainder. The estimate of
// zero would be infinite, so 2^-126 is added. For zero the root is then 2^-103, which does not change a sum
// with an eps of kSmallEps or more. For any other radicand the addition is rounded away.
__device__ inline Root sqrt(F32 a) {
  const float scaled = __fmaf_rn(a.v, 0x1p80F, 0x1p-126F);
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(scaled));
  const float root = scaled * y;
  return {__fmaf_rn(__fmaf_rn(-root, root, scaled), 0.5F * y, root)};
}

}  // namespace octavo::cuda
