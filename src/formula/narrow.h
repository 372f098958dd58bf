// Converts between fp32 and the stored types of weights: bf16, fp16, and split masters. Integer arithmetic on
// bits gives the same result on every backend. A NaN is always written in its canonical form.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

#include <cstdint>

namespace octavo::formula {

inline constexpr std::int32_t kNan32 = 0x7FC00000;
inline constexpr std::int32_t kInf32 = 0x7F800000;

template <class F>
OCTAVO_HD inline F canonical(F x) {
  return select(is_nan(x), from_bits(decltype(bits(x))(kNan32)), x);
}

template <class I>
OCTAVO_HD inline auto bf16_to_float(I half) {
  return from_bits(shl<16>(half));
}

// Rounds to nearest even.
template <class F>
OCTAVO_HD inline auto float_to_bf16(F x) {
  using I = decltype(bits(x));
  const I b = bits(x);
  const I rounded = shr<16>(b + I(0x7FFF) + (shr<16>(b) & I(1)));
  return select(is_nan(x), I(kNan32 >> 16), rounded);
}

// Rounds up with a probability equal to the part that truncation would drop. This is unbiased if `random` is
// uniform on 16 bits.
template <class F, class I>
OCTAVO_HD inline I float_to_bf16_stochastic(F x, I random) {
  const I b = bits(x);
  const I finite = shr<16>(b + random);
  const I special = select(is_nan(x), I(kNan32 >> 16), shr<16>(b));
  return select((b & I(0x7FFFFFFF)) < I(kInf32), finite, special);
}

template <class I>
OCTAVO_HD inline auto fp16_to_float(I half) {
  using F = decltype(to_float(half));
  const I magnitude = half & I(0x7FFF);
  const I sign = shl<16>(half & I(0x8000));
  const I normal = shl<13>(magnitude) + I((127 - 15) << 23);
  const F subnormal = to_float(magnitude) * F(0x1p-24F);
  const I special = shl<13>(magnitude) + I((255 - 31) << 23);
  const I finite = select(magnitude < I(0x0400), bits(subnormal), normal);
  return from_bits(select(magnitude < I(0x7C00), finite, special) | sign);
}

// Rounds to nearest even. Overflow gives infinity.
template <class F>
OCTAVO_HD inline auto float_to_fp16(F x) {
  using I = decltype(bits(x));
  const I b = bits(x);
  const I magnitude = b & I(0x7FFFFFFF);
  const I sign = shr<16>(b) & I(0x8000);
  const I normal = shr<13>(magnitude - I((127 - 15) << 23) + I(0xFFF) + (shr<13>(magnitude) & I(1)));
  // Adding 2^-1 aligns the subnormal's last bit (2^-24) with the float's last bit, so the sum is rounded as
  // required.
  const I subnormal = bits(from_bits(magnitude) + F(0.5F)) - bits(F(0.5F));
  const I finite = select(magnitude < I((127 - 14) << 23), subnormal, min(normal, I(0x7C00)));
  const I special = select(magnitude > I(kInf32), I(0x7E00), I(0x7C00));
  const I half = select(magnitude < I(kInf32), finite, special);
  return select(magnitude > I(kInf32), half, half | sign);
}

// A master of 32 or 24 bits, stored as a bf16 weight and a residual, which is the difference. The weight is
// rounded half up in magnitude, so that the residual fits its signed type. Weight and residual together give
// the master in bits.
template <class I>
struct Split {
  I weight, residual;
};

template <class F>
OCTAVO_HD inline auto split16(F x) {
  using I = decltype(bits(x));
  const I b = bits(canonical(x));
  const I weight = shr<16>(b + I(0x8000));
  return Split<I>{weight, b - shl<16>(weight)};
}
// Joins a weight and the residual that is added to its bits. A weight of ±0 never has a negative residual, so
// a negative one is left over from before the weight was set to zero from outside, and it is ignored. So
// every finite weight is a finite master. The residual is added to the magnitude, because a sum below zero is
// then visible in its sign.
template <class I>
OCTAVO_HD inline auto join_bits(I weight, I added) {
  const I wide = shl<16>(weight);
  const I magnitude = max((wide & I(0x7FFFFFFF)) + added, I(0));
  return from_bits(magnitude | (wide & I(INT32_MIN)));
}
template <class I>
OCTAVO_HD inline auto join16(I weight, I residual) {
  return join_bits(weight, residual);
}

template <class F>
OCTAVO_HD inline auto split8(F x) {
  using I = decltype(bits(x));
  const I b = bits(canonical(x));
  const I rounded = (b + I(0x80)) & I(~0xFF);
  const I weight = shr<16>(rounded + I(0x8000));
  return Split<I>{weight, sar<8>(rounded - shl<16>(weight))};
}
template <class I>
OCTAVO_HD inline auto join8(I weight, I residual) {
  return join_bits(weight, shl<8>(residual));
}

}  // namespace octavo::formula
