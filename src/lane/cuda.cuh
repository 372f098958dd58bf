// The lane of a CUDA thread where operands are known to be in range: the same values as scalar::F32, with a
// division and a square root that have no branch. Both are the sequences that IEEE results are made of,
// without the check for operands whose intermediate results would overflow or lose bits; so a caller must
// check, once for many elements, that they do not (lane/exact.h), and use the scalar lane where they might.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/exact.h"
#include "lane/scalar.h"

namespace octavo::cuda {

// `kZeros`: a zero may be divided, too. Its quotient takes the sign that a correction by zero would lose.
template <bool kZeros>
struct FastF32 {
  float v;
  __device__ FastF32(float x = 0.0F) : v(x) {}  // NOLINT(google-explicit-constructor)
};
using F32 = FastF32<false>;

template <bool kZ>
__device__ inline FastF32<kZ> operator+(FastF32<kZ> a, FastF32<kZ> b) {
  return a.v + b.v;
}
template <bool kZ>
__device__ inline FastF32<kZ> operator-(FastF32<kZ> a, FastF32<kZ> b) {
  return a.v - b.v;
}
template <bool kZ>
__device__ inline FastF32<kZ> operator*(FastF32<kZ> a, FastF32<kZ> b) {
  return a.v * b.v;
}
template <bool kZ>
__device__ inline FastF32<kZ> fma(FastF32<kZ> a, FastF32<kZ> b, FastF32<kZ> c) {
  return __fmaf_rn(a.v, b.v, c.v);
}
template <bool kZ>
__device__ inline scalar::Mask operator<(FastF32<kZ> a, FastF32<kZ> b) {
  return {a.v < b.v};
}
template <bool kZ>
__device__ inline scalar::Mask operator>(FastF32<kZ> a, FastF32<kZ> b) {
  return {a.v > b.v};
}
template <bool kZ>
__device__ inline scalar::Mask is_nan(FastF32<kZ> a) {
  return {a.v != a.v};
}
template <bool kZ>
__device__ inline FastF32<kZ> select(scalar::Mask m, FastF32<kZ> yes, FastF32<kZ> no) {
  return m.v ? yes : no;
}

// An estimate of the reciprocal, one Newton step, and a quotient corrected by its exact remainder. Compilers
// correct twice. Over all 2^46 pairs of mantissas the second correction changes nothing
// (LaneCuda.AllPairsOfMantissas with OCTAVO_TEST_FULL=1).
template <bool kZ>
__device__ inline FastF32<kZ> operator/(FastF32<kZ> a, FastF32<kZ> b) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b.v));
  y = __fmaf_rn(y, __fmaf_rn(-b.v, y, 1.0F), y);
  const float q = a.v * y;
  const float quotient = __fmaf_rn(y, __fmaf_rn(-b.v, q, a.v), q);
  return kZ ? copysignf(quotient, a.v) : quotient;  // b is positive
}

// An estimate of the reciprocal root, and a root corrected by its exact remainder.
template <bool kZ>
__device__ inline FastF32<kZ> sqrt(FastF32<kZ> a) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a.v));
  const float root = a.v * y;
  return __fmaf_rn(__fmaf_rn(-root, root, a.v), 0.5F * y, root);
}

}  // namespace octavo::cuda
