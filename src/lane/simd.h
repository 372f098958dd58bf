// The SIMD lane over Highway's static target: include it only from a file that is compiled for one instruction set
// (src/cpu/kernels_*.cc), whose flags choose the target. Same contract as lane/scalar.h, which see.
// The namespace carries the target's name, so that objects of several targets link together.
// SPDX-License-Identifier: MIT
#pragma once

#ifndef HWY_COMPILE_ONLY_STATIC
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/highway.h>

#include <cstdint>

namespace octavo::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DU = hn::ScalableTag<std::uint32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

struct MaskF {
  hn::Mask<DF> v;
};
struct MaskI {
  hn::Mask<DI> v;
};

struct I32 {
  VI v;
  HWY_INLINE I32() : v(hn::Zero(DI())) {}
  HWY_INLINE I32(std::int32_t x) : v(hn::Set(DI(), x)) {}  // NOLINT(google-explicit-constructor)
  HWY_INLINE explicit I32(VI x) : v(x) {}
  HWY_INLINE static I32 of(std::uint32_t x) { return I32(static_cast<std::int32_t>(x)); }
  [[nodiscard]] HWY_INLINE VU u() const { return hn::BitCast(DU(), v); }
  HWY_INLINE static I32 of(VU x) { return I32(hn::BitCast(DI(), x)); }
};

struct F32 {
  VF v;
  HWY_INLINE F32() : v(hn::Zero(DF())) {}
  HWY_INLINE F32(float x) : v(hn::Set(DF(), x)) {}  // NOLINT(google-explicit-constructor)
  HWY_INLINE explicit F32(VF x) : v(x) {}
};

HWY_INLINE F32 operator+(F32 a, F32 b) { return F32(hn::Add(a.v, b.v)); }
HWY_INLINE F32 operator-(F32 a, F32 b) { return F32(hn::Sub(a.v, b.v)); }
HWY_INLINE F32 operator*(F32 a, F32 b) { return F32(hn::Mul(a.v, b.v)); }
HWY_INLINE F32 operator/(F32 a, F32 b) { return F32(hn::Div(a.v, b.v)); }
HWY_INLINE F32 fma(F32 a, F32 b, F32 c) { return F32(hn::MulAdd(a.v, b.v, c.v)); }
HWY_INLINE F32 sqrt(F32 a) { return F32(hn::Sqrt(a.v)); }
HWY_INLINE F32 min(F32 a, F32 b) { return F32(hn::Min(a.v, b.v)); }
HWY_INLINE F32 max(F32 a, F32 b) { return F32(hn::Max(a.v, b.v)); }
HWY_INLINE MaskF operator<(F32 a, F32 b) { return {hn::Lt(a.v, b.v)}; }
HWY_INLINE MaskF operator>(F32 a, F32 b) { return {hn::Gt(a.v, b.v)}; }
HWY_INLINE MaskF is_nan(F32 a) { return {hn::Ne(a.v, a.v)}; }

HWY_INLINE I32 operator+(I32 a, I32 b) { return I32(hn::Add(a.v, b.v)); }
HWY_INLINE I32 operator-(I32 a, I32 b) { return I32(hn::Sub(a.v, b.v)); }
HWY_INLINE I32 operator*(I32 a, I32 b) { return I32(hn::Mul(a.v, b.v)); }
HWY_INLINE I32 operator&(I32 a, I32 b) { return I32(hn::And(a.v, b.v)); }
HWY_INLINE I32 operator|(I32 a, I32 b) { return I32(hn::Or(a.v, b.v)); }
HWY_INLINE I32 operator^(I32 a, I32 b) { return I32(hn::Xor(a.v, b.v)); }
template <int kBits>
HWY_INLINE I32 shl(I32 a) { return I32(hn::ShiftLeft<kBits>(a.v)); }
template <int kBits>
HWY_INLINE I32 shr(I32 a) { return I32::of(hn::ShiftRight<kBits>(a.u())); }
template <int kBits>
HWY_INLINE I32 sar(I32 a) { return I32(hn::ShiftRight<kBits>(a.v)); }
HWY_INLINE I32 min(I32 a, I32 b) { return I32(hn::Min(a.v, b.v)); }
HWY_INLINE I32 max(I32 a, I32 b) { return I32(hn::Max(a.v, b.v)); }
HWY_INLINE MaskI operator<(I32 a, I32 b) { return {hn::Lt(a.v, b.v)}; }
HWY_INLINE MaskI operator>(I32 a, I32 b) { return {hn::Gt(a.v, b.v)}; }
HWY_INLINE MaskI operator==(I32 a, I32 b) { return {hn::Eq(a.v, b.v)}; }

HWY_INLINE F32 select(MaskF m, F32 yes, F32 no) { return F32(hn::IfThenElse(m.v, yes.v, no.v)); }
HWY_INLINE I32 select(MaskI m, I32 yes, I32 no) { return I32(hn::IfThenElse(m.v, yes.v, no.v)); }
HWY_INLINE I32 select(MaskF m, I32 yes, I32 no) {
  return I32(hn::IfThenElse(hn::RebindMask(DI(), m.v), yes.v, no.v));
}
HWY_INLINE F32 select(MaskI m, F32 yes, F32 no) {
  return F32(hn::IfThenElse(hn::RebindMask(DF(), m.v), yes.v, no.v));
}

HWY_INLINE I32 bits(F32 a) { return I32(hn::BitCast(DI(), a.v)); }
HWY_INLINE F32 from_bits(I32 a) { return F32(hn::BitCast(DF(), a.v)); }
HWY_INLINE F32 to_float(I32 a) { return F32(hn::ConvertTo(DF(), a.v)); }

// a - 1 where the mask holds: one subtraction, because a vector mask is -1.
HWY_INLINE I32 add_where(I32 a, MaskF m) { return I32(hn::Sub(a.v, hn::VecFromMask(DI(), hn::RebindMask(DI(), m.v)))); }

// REQUIRES: the value fits an int32 (the raw instruction; Highway's ConvertTo would add a saturation).
HWY_INLINE I32 truncate(F32 a) {
#if HWY_TARGET == HWY_AVX2
  return I32(VI{_mm256_cvttps_epi32(a.v.raw)});
#elif HWY_TARGET == HWY_AVX3
  return I32(VI{_mm512_cvttps_epi32(a.v.raw)});
#else
  return I32(hn::ConvertTo(DI(), a.v));
#endif
}

// a >> b per lane, logical; b is below 32.
HWY_INLINE I32 shrv(I32 a, I32 b) { return I32::of(hn::Shr(a.u(), b.u())); }
HWY_INLINE I32 min_u(I32 a, I32 b) { return I32::of(hn::Min(a.u(), b.u())); }

// table[i & (size - 1)] for tables that fit registers: 8 entries in one instruction, 16 in one or three.
HWY_INLINE I32 lookup8(const std::int32_t* table, I32 i) {
#if HWY_TARGET == HWY_AVX2
  return I32(VI{_mm256_permutevar8x32_epi32(hn::Load(DI(), table).raw, i.v.raw)});
#elif HWY_TARGET == HWY_AVX3
  const __m512i twice = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(table)));
  return I32(VI{_mm512_permutexvar_epi32(i.v.raw, twice)});
#elif HWY_TARGET == HWY_NEON
  const uint8x16x2_t bytes = {{vreinterpretq_u8_s32(vld1q_s32(table)), vreinterpretq_u8_s32(vld1q_s32(table + 4))}};
  const VI at = hn::Add(hn::Mul(hn::And(i.v, hn::Set(DI(), 7)), hn::Set(DI(), 0x04040404)),
                        hn::Set(DI(), 0x03020100));
  return I32(VI{vreinterpretq_s32_u8(vqtbl2q_u8(bytes, vreinterpretq_u8_s32(at.raw)))});
#else
#error "lookup8 knows AVX2, AVX-512 and NEON"
#endif
}
HWY_INLINE I32 lookup16(const std::int32_t* table, I32 i) {
#if HWY_TARGET == HWY_AVX3
  return I32(VI{_mm512_permutexvar_epi32(i.v.raw, hn::Load(DI(), table).raw)});
#else
  const VF low = hn::BitCast(DF(), lookup8(table, i).v);
  const VF high = hn::BitCast(DF(), lookup8(table + 8, i).v);
  const auto upper = hn::MaskFromVec(hn::BitCast(DF(), hn::BroadcastSignBit(hn::ShiftLeft<28>(i.v))));
  return I32(hn::BitCast(DI(), hn::IfThenElse(upper, high, low)));
#endif
}
HWY_INLINE F32 lookup8(const float* table, I32 i) { return from_bits(lookup8(reinterpret_cast<const std::int32_t*>(table), i)); }
HWY_INLINE F32 lookup16(const float* table, I32 i) { return from_bits(lookup16(reinterpret_cast<const std::int32_t*>(table), i)); }

struct Lane {
  using F = F32;
  using I = I32;
  static constexpr int kWidth = static_cast<int>(hn::MaxLanes(DF()));
  static constexpr bool kSimd = true;

  template <class T>
  using Narrow = hn::Rebind<T, DI>;

  static HWY_INLINE F load(const float* p) { return F(hn::LoadU(DF(), p)); }
  static HWY_INLINE void store(F a, float* p) { hn::StoreU(a.v, DF(), p); }
  static HWY_INLINE I load_u8(const std::uint8_t* p) { return I(hn::PromoteTo(DI(), hn::LoadU(Narrow<std::uint8_t>(), p))); }
  static HWY_INLINE I load_i8(const std::int8_t* p) { return I(hn::PromoteTo(DI(), hn::LoadU(Narrow<std::int8_t>(), p))); }
  static HWY_INLINE I load_u16(const std::uint16_t* p) { return I(hn::PromoteTo(DI(), hn::LoadU(Narrow<std::uint16_t>(), p))); }
  static HWY_INLINE I load_i16(const std::int16_t* p) { return I(hn::PromoteTo(DI(), hn::LoadU(Narrow<std::int16_t>(), p))); }
  static HWY_INLINE void store_u8(I a, std::uint8_t* p) { hn::StoreU(hn::DemoteTo(Narrow<std::uint8_t>(), a.v), Narrow<std::uint8_t>(), p); }
  static HWY_INLINE void store_i8(I a, std::int8_t* p) { hn::StoreU(hn::DemoteTo(Narrow<std::int8_t>(), a.v), Narrow<std::int8_t>(), p); }
  static HWY_INLINE void store_u16(I a, std::uint16_t* p) { hn::StoreU(hn::DemoteTo(Narrow<std::uint16_t>(), a.v), Narrow<std::uint16_t>(), p); }
  static HWY_INLINE void store_i16(I a, std::int16_t* p) { hn::StoreU(hn::DemoteTo(Narrow<std::int16_t>(), a.v), Narrow<std::int16_t>(), p); }
  static HWY_INLINE I iota() { return I(hn::Iota(DI(), 0)); }
  // The largest lane, all of which are non-negative.
  static HWY_INLINE std::uint32_t reduce_max_u31(I a) {
    return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), a.v)));
  }
  static HWY_INLINE std::uint32_t reduce_min_u(I a) { return hn::GetLane(hn::MinOfLanes(DU(), a.u())); }
};

}  // namespace octavo::HWY_NAMESPACE
