// Lanes of 32-bit numbers as 16-bit ones, for steps that need no more bits, with half the instructions. It is
// part of lane/simd.h, which includes it. The order of elements is that of the narrowing instructions, and
// the stores undo it.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::OCTAVO_LANE {

using D16 = hn::Repartition<std::int16_t, DI>;
using DU16 = hn::Repartition<std::uint16_t, DI>;
using DB = hn::Repartition<std::uint8_t, DI>;
using V16 = hn::Vec<D16>;
using VB = hn::Vec<DB>;

// Narrows two vectors to one. Numbers that do not fit become the nearest one that does.
HWY_INLINE V16 narrow_words(VI a, VI b) {
#if HWY_TARGET == HWY_AVX2
  return V16{_mm256_packs_epi32(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return V16{_mm512_packs_epi32(a.raw, b.raw)};
#elif HWY_TARGET == HWY_NEON
  return V16{vcombine_s16(vqmovn_s32(a.raw), vqmovn_s32(b.raw))};
#else
#error "Words know AVX2, AVX-512 and NEON"
#endif
}
HWY_INLINE V16 narrow_words_u(VI a, VI b) {
#if HWY_TARGET == HWY_AVX2
  return V16{_mm256_packus_epi32(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return V16{_mm512_packus_epi32(a.raw, b.raw)};
#elif HWY_TARGET == HWY_NEON
  return V16{vreinterpretq_s16_u16(vcombine_u16(vqmovun_s32(a.raw), vqmovun_s32(b.raw)))};
#endif
}
HWY_INLINE VB narrow_bytes(V16 a, V16 b) {
#if HWY_TARGET == HWY_AVX2
  return VB{_mm256_packs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return VB{_mm512_packs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_NEON
  return VB{vreinterpretq_u8_s8(vcombine_s8(vqmovn_s16(a.raw), vqmovn_s16(b.raw)))};
#endif
}
HWY_INLINE VB narrow_bytes_u(V16 a, V16 b) {
#if HWY_TARGET == HWY_AVX2
  return VB{_mm256_packus_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return VB{_mm512_packus_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_NEON
  return VB{vcombine_u8(vqmovun_s16(a.raw), vqmovun_s16(b.raw))};
#endif
}

// Two lanes as one vector of 16-bit numbers.
struct Words {
  V16 v;
  HWY_INLINE Words(std::int16_t x) : v(hn::Set(D16(), x)) {}  // NOLINT(google-explicit-constructor)
  HWY_INLINE explicit Words(V16 x) : v(x) {}
  HWY_INLINE Words(I32 a, I32 b) : v(narrow_words(a.v, b.v)) {}
  // Converts numbers from 0 to 65,535.
  static HWY_INLINE Words of_unsigned(I32 a, I32 b) { return Words(narrow_words_u(a.v, b.v)); }
};

HWY_INLINE Words operator+(Words a, Words b) { return Words(hn::Add(a.v, b.v)); }
HWY_INLINE Words max(Words a, Words b) { return Words(hn::Max(a.v, b.v)); }
HWY_INLINE Words min_u(Words a, Words b) {
  return Words(hn::BitCast(D16(), hn::Min(hn::BitCast(DU16(), a.v), hn::BitCast(DU16(), b.v))));
}

// Like apply_sign of single lanes: returns a with the sign of b, where b = 0 requires a = 0.
HWY_INLINE Words apply_sign(Words a, Words b) {
#if HWY_TARGET == HWY_AVX2
  return Words(V16{_mm256_sign_epi16(a.v.raw, b.v.raw)});
#elif HWY_TARGET == HWY_AVX3
  const __mmask32 negative = _mm512_movepi16_mask(b.v.raw);
  return Words(V16{_mm512_mask_sub_epi16(a.v.raw, negative, _mm512_setzero_si512(), a.v.raw)});
#else
  return Words(hn::IfThenElse(hn::MaskFromVec(hn::BroadcastSignBit(b.v)), hn::Neg(a.v), a.v));
#endif
}

// Subtracts one where b is zero.
HWY_INLINE Words sub_where_zero(Words a, Words b) {
#if HWY_TARGET == HWY_AVX3
  const __mmask32 zero = _mm512_testn_epi16_mask(b.v.raw, b.v.raw);
  return Words(V16{_mm512_mask_sub_epi16(a.v.raw, zero, a.v.raw, _mm512_set1_epi16(1))});
#else
  return Words(hn::Add(a.v, hn::VecFromMask(D16(), hn::Eq(b.v, hn::Zero(D16())))));
#endif
}

// Restores the order in which the four lanes were given.
HWY_INLINE VB ordered(VB bytes) {
#if HWY_TARGET == HWY_AVX2
  return VB{_mm256_permutevar8x32_epi32(bytes.raw, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))};
#elif HWY_TARGET == HWY_AVX3
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return VB{_mm512_permutexvar_epi32(order, bytes.raw)};
#else
  return bytes;
#endif
}

// Stores the numbers of four lanes as bytes. Numbers beyond a byte become the nearest one that fits.
HWY_INLINE void store_bytes(Words low, Words high, std::uint8_t* p) {
  hn::StoreU(ordered(narrow_bytes_u(low.v, high.v)), DB(), p);
}
// Stores bytes in the same way, with the top bit of each byte set where `sign` is negative.
struct SignedWords {
  Words code, sign;
};
HWY_INLINE void store_bytes(SignedWords low, SignedWords high, std::uint8_t* p) {
  const VB top = hn::And(narrow_bytes(low.sign.v, high.sign.v), hn::Set(DB(), 0x80));
  hn::StoreU(ordered(hn::Or(narrow_bytes_u(low.code.v, high.code.v), top)), DB(), p);
}

}  // namespace octavo::OCTAVO_LANE
