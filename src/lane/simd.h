// The SIMD lane over Highway's static target. Include it only from a file that is compiled for one
// instruction set (src/cpu/kernels_*.cc), whose flags choose the target. The contract is that of
// lane/scalar.h. The including file names the namespace, so that objects of several instruction sets can be
// linked together.
// SPDX-License-Identifier: MIT
#pragma once

#ifndef HWY_COMPILE_ONLY_STATIC
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/highway.h>

#include <array>
#include <bit>
#include <cstdint>

#ifndef OCTAVO_LANE
#error "define OCTAVO_LANE, the name of the namespace, before including lane/simd.h"
#endif

namespace octavo::OCTAVO_LANE {

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
  HWY_INLINE I32(std::int32_t x = 0) : v(hn::Set(DI(), x)) {}  // NOLINT(google-explicit-constructor)
  HWY_INLINE explicit I32(VI x) : v(x) {}
  HWY_INLINE static I32 of(std::uint32_t x) { return {static_cast<std::int32_t>(x)}; }
};

struct F32 {
  VF v;
  HWY_INLINE F32(float x = 0.0F) : v(hn::Set(DF(), x)) {}  // NOLINT(google-explicit-constructor)
  HWY_INLINE explicit F32(VF x) : v(x) {}
};

// Wraps f of the arguments' vectors.
template <class Out, class Fn, class... Arg>
HWY_INLINE Out each(Fn&& f, const Arg&... arg) {
  return Out{f(arg.v...)};
}
HWY_INLINE VU unsigned_of(VI x) { return hn::BitCast(DU(), x); }
HWY_INLINE VI signed_of(VU x) { return hn::BitCast(DI(), x); }

HWY_INLINE F32 operator+(F32 a, F32 b) {
  return each<F32>([](VF x, VF y) { return hn::Add(x, y); }, a, b);
}
HWY_INLINE F32 operator-(F32 a, F32 b) {
  return each<F32>([](VF x, VF y) { return hn::Sub(x, y); }, a, b);
}
HWY_INLINE F32 operator*(F32 a, F32 b) {
  return each<F32>([](VF x, VF y) { return hn::Mul(x, y); }, a, b);
}
HWY_INLINE F32 operator/(F32 a, F32 b) {
  return each<F32>([](VF x, VF y) { return hn::Div(x, y); }, a, b);
}
HWY_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return each<F32>([](VF x, VF y, VF z) { return hn::MulAdd(x, y, z); }, a, b, c);
}
HWY_INLINE F32 sqrt(F32 a) {
  return each<F32>([](VF x) { return hn::Sqrt(x); }, a);
}
HWY_INLINE F32 min(F32 a, F32 b) {
  return each<F32>([](VF x, VF y) { return hn::Min(x, y); }, a, b);
}
HWY_INLINE F32 max(F32 a, F32 b) {
  return each<F32>([](VF x, VF y) { return hn::Max(x, y); }, a, b);
}
HWY_INLINE MaskF operator<(F32 a, F32 b) {
  return each<MaskF>([](VF x, VF y) { return hn::Lt(x, y); }, a, b);
}
HWY_INLINE MaskF operator>(F32 a, F32 b) {
  return each<MaskF>([](VF x, VF y) { return hn::Gt(x, y); }, a, b);
}
// (Highway's Ne is an ordered comparison: false for NaN.)
HWY_INLINE MaskF is_nan(F32 a) {
  return each<MaskF>([](VF x) { return hn::Not(hn::Eq(x, x)); }, a);
}

HWY_INLINE I32 operator+(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Add(x, y); }, a, b);
}
HWY_INLINE I32 operator-(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Sub(x, y); }, a, b);
}
HWY_INLINE I32 operator*(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Mul(x, y); }, a, b);
}
HWY_INLINE I32 operator&(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::And(x, y); }, a, b);
}
HWY_INLINE I32 operator|(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Or(x, y); }, a, b);
}
HWY_INLINE I32 operator^(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Xor(x, y); }, a, b);
}
template <int kBits>
HWY_INLINE I32 shl(I32 a) {
  return each<I32>([](VI x) { return hn::ShiftLeft<kBits>(x); }, a);
}
template <int kBits>
HWY_INLINE I32 shr(I32 a) {
  return each<I32>([](VI x) { return signed_of(hn::ShiftRight<kBits>(unsigned_of(x))); }, a);
}
template <int kBits>
HWY_INLINE I32 sar(I32 a) {
  return each<I32>([](VI x) { return hn::ShiftRight<kBits>(x); }, a);
}
HWY_INLINE I32 min(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Min(x, y); }, a, b);
}
HWY_INLINE I32 max(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return hn::Max(x, y); }, a, b);
}
HWY_INLINE I32 abs(I32 a) {
  return each<I32>([](VI x) { return hn::Abs(x); }, a);
}
HWY_INLINE MaskI operator<(I32 a, I32 b) {
  return each<MaskI>([](VI x, VI y) { return hn::Lt(x, y); }, a, b);
}
HWY_INLINE MaskI operator>(I32 a, I32 b) {
  return each<MaskI>([](VI x, VI y) { return hn::Gt(x, y); }, a, b);
}
HWY_INLINE MaskI operator==(I32 a, I32 b) {
  return each<MaskI>([](VI x, VI y) { return hn::Eq(x, y); }, a, b);
}

using MF = hn::Mask<DF>;
using MI = hn::Mask<DI>;
HWY_INLINE F32 select(MaskF m, F32 yes, F32 no) {
  return each<F32>([](MF k, VF x, VF y) { return hn::IfThenElse(k, x, y); }, m, yes, no);
}
HWY_INLINE I32 select(MaskI m, I32 yes, I32 no) {
  return each<I32>([](MI k, VI x, VI y) { return hn::IfThenElse(k, x, y); }, m, yes, no);
}
HWY_INLINE I32 select(MaskF m, I32 yes, I32 no) {
  return each<I32>([](MF k, VI x, VI y) { return hn::IfThenElse(hn::RebindMask(DI(), k), x, y); }, m, yes,
                   no);
}
HWY_INLINE F32 select(MaskI m, F32 yes, F32 no) {
  return each<F32>([](MI k, VF x, VF y) { return hn::IfThenElse(hn::RebindMask(DF(), k), x, y); }, m, yes,
                   no);
}

HWY_INLINE I32 bits(F32 a) {
  return each<I32>([](VF x) { return hn::BitCast(DI(), x); }, a);
}
HWY_INLINE F32 from_bits(I32 a) {
  return each<F32>([](VI x) { return hn::BitCast(DF(), x); }, a);
}
HWY_INLINE F32 to_float(I32 a) {
  return each<F32>([](VI x) { return hn::ConvertTo(DF(), x); }, a);
}

// Returns a with the sign of b: a, -a, or (if b is zero) a or 0, so that b = 0 requires a = 0.
HWY_INLINE I32 apply_sign(I32 a, I32 b) {
  return each<I32>(
      [](VI x, VI y) {
#if HWY_TARGET == HWY_AVX2
        return VI{_mm256_sign_epi32(x.raw, y.raw)};
#elif HWY_TARGET == HWY_AVX3
        return VI{_mm512_mask_sub_epi32(x.raw, _mm512_movepi32_mask(y.raw), _mm512_setzero_si512(), x.raw)};
#else
        return hn::IfThenElse(hn::MaskFromVec(hn::BroadcastSignBit(y)), hn::Neg(x), x);
#endif
      },
      a, b);
}

// Adds or subtracts one where the mask is true, in one operation, because a vector mask is -1 (or, in
// AVX-512, a predicate).
HWY_INLINE I32 add_where(I32 a, MaskF m) {
  return each<I32>(
      [](VI x, MF k) {
#if HWY_TARGET == HWY_AVX3
        return VI{_mm512_mask_add_epi32(x.raw, k.raw, x.raw, _mm512_set1_epi32(1))};
#else
        return hn::Sub(x, hn::VecFromMask(DI(), hn::RebindMask(DI(), k)));
#endif
      },
      a, m);
}
HWY_INLINE I32 sub_where(I32 a, MaskI m) {
  return each<I32>(
      [](VI x, MI k) {
#if HWY_TARGET == HWY_AVX3
        return VI{_mm512_mask_sub_epi32(x.raw, k.raw, x.raw, _mm512_set1_epi32(1))};
#else
        return hn::Add(x, hn::VecFromMask(DI(), k));
#endif
      },
      a, m);
}

// Sets all bits where the mask is true (as a float, a NaN).
HWY_INLINE I32 ones_where(I32 a, MaskF m) {
  return each<I32>([](VI x, MF k) { return hn::Or(x, hn::VecFromMask(DI(), hn::RebindMask(DI(), k))); }, a,
                   m);
}

// REQUIRES: the value fits an int32 (the raw instruction; Highway's ConvertTo would add a saturation).
HWY_INLINE I32 truncate(F32 a) {
  return each<I32>(
      [](VF x) {
#if HWY_TARGET == HWY_AVX2
        return VI{_mm256_cvttps_epi32(x.raw)};
#elif HWY_TARGET == HWY_AVX3
        return VI{_mm512_cvttps_epi32(x.raw)};
#else
        return hn::ConvertTo(DI(), x);
#endif
      },
      a);
}

// Computes a >> b per lane, logical; b is below 32.
HWY_INLINE I32 shrv(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return signed_of(hn::Shr(unsigned_of(x), unsigned_of(y))); }, a, b);
}
HWY_INLINE I32 min_u(I32 a, I32 b) {
  return each<I32>([](VI x, VI y) { return signed_of(hn::Min(unsigned_of(x), unsigned_of(y))); }, a, b);
}

// Operations on a lane's bytes: a - b, saturated at zero; and table[a] for a below 16, where zero bytes give
// table[0], which must be zero.
HWY_INLINE I32 saturated_sub_bytes(I32 a, std::uint8_t b) {
  return each<I32>(
      [b](VI x) {
        const hn::Repartition<std::uint8_t, DI> bytes;
        return hn::BitCast(DI(), hn::SaturatedSub(hn::BitCast(bytes, x), hn::Set(bytes, b)));
      },
      a);
}
HWY_INLINE I32 lookup_bytes(const std::uint8_t* table, I32 i) {
  return each<I32>(
      [table](VI x) {
        const hn::Repartition<std::uint8_t, DI> bytes;
        return hn::BitCast(DI(), hn::TableLookupBytes(hn::LoadDup128(bytes, table), hn::BitCast(bytes, x)));
      },
      i);
}

// Returns table[i & 7], table[i & 15] or table[i & 31]. Tables are aligned to their size or to a vector.
HWY_INLINE VI lookup8_vector(const std::int32_t* table, VI i) {
#if HWY_TARGET == HWY_AVX2
  return VI{_mm256_permutevar8x32_epi32(hn::Load(DI(), table).raw, i.raw)};
#elif HWY_TARGET == HWY_AVX3
  const __m512i twice = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(table)));
  return VI{_mm512_permutexvar_epi32(i.raw, twice)};
#elif HWY_TARGET == HWY_NEON
  const uint8x16x2_t bytes = {
      {vreinterpretq_u8_s32(vld1q_s32(table)), vreinterpretq_u8_s32(vld1q_s32(table + 4))}};
  const VI at =
      hn::Add(hn::Mul(hn::And(i, hn::Set(DI(), 7)), hn::Set(DI(), 0x04040404)), hn::Set(DI(), 0x03020100));
  return VI{vreinterpretq_s32_u8(vqtbl2q_u8(bytes, vreinterpretq_u8_s32(at.raw)))};
#else
#error "lookup8 supports AVX2, AVX-512 and NEON"
#endif
}
HWY_INLINE VI lookup16_vector(const std::int32_t* table, VI i) {
#if HWY_TARGET == HWY_AVX3
  return VI{_mm512_permutexvar_epi32(i.raw, hn::Load(DI(), table).raw)};
#elif HWY_TARGET == HWY_AVX2
  // The blend reads only the sign bit.
  const __m256 low = _mm256_castsi256_ps(lookup8_vector(table, i).raw);
  const __m256 high = _mm256_castsi256_ps(lookup8_vector(table + 8, i).raw);
  return VI{
      _mm256_castps_si256(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i.raw, 28))))};
#else
  const auto upper = hn::MaskFromVec(hn::BroadcastSignBit(hn::ShiftLeft<28>(i)));
  return hn::IfThenElse(upper, lookup8_vector(table + 8, i), lookup8_vector(table, i));
#endif
}
HWY_INLINE I32 lookup16(const std::int32_t* table, I32 i) {
  return each<I32>([table](VI x) { return lookup16_vector(table, x); }, i);
}
#if HWY_TARGET == HWY_AVX3
HWY_INLINE I32 lookup32(const std::int32_t* table, I32 i) {
  return each<I32>(
      [table](VI x) {
        return VI{
            _mm512_permutex2var_epi32(hn::Load(DI(), table).raw, x.raw, hn::Load(DI(), table + 16).raw)};
      },
      i);
}
#endif
HWY_INLINE I32 lookup8(const std::int32_t* table, I32 i) {
  return each<I32>([table](VI x) { return lookup8_vector(table, x); }, i);
}
HWY_INLINE F32 lookup8(const float* table, I32 i) {
  return from_bits(lookup8(reinterpret_cast<const std::int32_t*>(table), i));
}

}  // namespace octavo::OCTAVO_LANE

#include "lane/simd_words.h"

namespace octavo::OCTAVO_LANE {

struct Lane {
  using F = F32;
  using I = I32;
  using W = Words;
  using SignedW = SignedWords;
  static constexpr int kWidth = static_cast<int>(hn::MaxLanes(DF()));
  static constexpr bool kSimd = true;
  static constexpr bool kLookup32 = HWY_TARGET == HWY_AVX3;  // true if the lane has lookup32

  static HWY_INLINE F load(const float* p) { return F(hn::LoadU(DF(), p)); }
  static HWY_INLINE void store(F a, float* p) { hn::StoreU(a.v, DF(), p); }

  template <class T>
  static HWY_INLINE I widen(const T* p) {
    const hn::Rebind<T, DI> narrow;
    return I(hn::PromoteTo(DI(), hn::LoadU(narrow, p)));
  }
  template <class T>
  static HWY_INLINE void narrow(I a, T* p) {
    const hn::Rebind<T, DI> to;
    hn::StoreU(hn::DemoteTo(to, a.v), to, p);
  }
  static HWY_INLINE I load_u8(const std::uint8_t* p) { return widen(p); }
  static HWY_INLINE I load_i8(const std::int8_t* p) { return widen(p); }
  static HWY_INLINE I load_u16(const std::uint16_t* p) { return widen(p); }
  static HWY_INLINE I load_i16(const std::int16_t* p) { return widen(p); }
  static HWY_INLINE void store_u8(I a, std::uint8_t* p) { narrow(a, p); }
  static HWY_INLINE void store_i8(I a, std::int8_t* p) { narrow(a, p); }
  static HWY_INLINE void store_u16(I a, std::uint16_t* p) { narrow(a, p); }
  static HWY_INLINE void store_i16(I a, std::int16_t* p) { narrow(a, p); }

  // A map of 256 (or 16) floats as four planes of bytes, for look-ups of complete bytes.
  template <std::size_t kSize>
  struct Planes {
    alignas(64) std::uint8_t byte[4][kSize];
    explicit constexpr Planes(const std::array<float, kSize>& values) : byte{} {
      for (std::size_t i = 0; i < kSize; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        for (std::size_t k = 0; k < 4; ++k) byte[k][i] = static_cast<std::uint8_t>(bits >> (8 * k));
      }
    }
  };
  // Sixteen entries are one instruction on every target; 256 require AVX-512's VBMI.
  template <std::size_t kSize>
#if defined(__AVX512VBMI__)
  static constexpr bool kByteLookup = kSize == 16 || kSize == 256;
#else
  static constexpr bool kByteLookup = kSize == 16;
#endif

  template <std::size_t kSize>
  static HWY_INLINE hn::Vec<DB> lookup_plane(const std::uint8_t (&table)[kSize], hn::Vec<DB> codes) {
#if defined(__AVX512VBMI__)
    if constexpr (kSize == 256) {
      const auto quarter = [&](int i) { return _mm512_load_si512(table + 64 * i); };
      const __m512i low = _mm512_permutex2var_epi8(quarter(0), codes.raw, quarter(1));
      const __m512i high = _mm512_permutex2var_epi8(quarter(2), codes.raw, quarter(3));
      return hn::Vec<DB>{_mm512_mask_blend_epi8(_mm512_movepi8_mask(codes.raw), low, high)};
    }
#endif
    return hn::TableLookupBytes(hn::LoadDup128(DB(), table), codes);
  }

  // Looks up the floats of 4 * kWidth codes, one per byte. Interleaving works within blocks of 16 bytes, so
  // the codes are first permuted such that the results are in the order of the codes.
  template <std::size_t kSize>
  static HWY_INLINE void lookup_bytes4(const Planes<kSize>& planes, const std::uint8_t* codes, float* out) {
    hn::Vec<DB> c = hn::LoadU(DB(), codes);
#if HWY_TARGET == HWY_AVX2
    c.raw = _mm256_permutevar8x32_epi32(c.raw, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
#elif HWY_TARGET == HWY_AVX3
    c.raw = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                     c.raw);
#endif
    const hn::Repartition<std::uint16_t, DI> d16;
    const auto b0 = lookup_plane(planes.byte[0], c), b1 = lookup_plane(planes.byte[1], c);
    const auto b2 = lookup_plane(planes.byte[2], c), b3 = lookup_plane(planes.byte[3], c);
    const auto low01 = hn::BitCast(d16, hn::InterleaveLower(DB(), b0, b1)),
               high01 = hn::BitCast(d16, hn::InterleaveUpper(DB(), b0, b1));
    const auto low23 = hn::BitCast(d16, hn::InterleaveLower(DB(), b2, b3)),
               high23 = hn::BitCast(d16, hn::InterleaveUpper(DB(), b2, b3));
    hn::StoreU(hn::BitCast(DF(), hn::InterleaveLower(d16, low01, low23)), DF(), out);
    hn::StoreU(hn::BitCast(DF(), hn::InterleaveUpper(d16, low01, low23)), DF(), out + kWidth);
    hn::StoreU(hn::BitCast(DF(), hn::InterleaveLower(d16, high01, high23)), DF(), out + 2 * kWidth);
    hn::StoreU(hn::BitCast(DF(), hn::InterleaveUpper(d16, high01, high23)), DF(), out + 3 * kWidth);
  }

  // True if look-ups in a memory table, between SIMD instructions, decode 256 values faster than SIMD does.
  static constexpr bool kTableBeside =
      (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3) && !kByteLookup<256>;

  // Converts bytes to two vectors of fp16 numbers: each byte is widened with its sign, shifted and masked.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  static constexpr bool kHalves = true;
  template <int kShift>
  static HWY_INLINE void load_halves(const std::uint8_t* p, std::int16_t mask, F& low, F& high) {
#if HWY_TARGET == HWY_AVX2
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, kShift), _mm256_set1_epi16(mask));
    low.v = VF{_mm256_cvtph_ps(_mm256_castsi256_si128(half))};
    high.v = VF{_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
#else
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i half = _mm512_and_si512(_mm512_slli_epi16(wide, kShift), _mm512_set1_epi16(mask));
    low.v = VF{_mm512_cvtph_ps(_mm512_castsi512_si256(half))};
    high.v = VF{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))};
#endif
  }
#else
  static constexpr bool kHalves = false;
#endif
  // Returns true if any of 4 * kWidth bytes, without its top bit, is above `bound`.
  static HWY_INLINE bool any_byte_above(const std::uint8_t* p, std::int8_t bound) {
    const hn::Repartition<std::int8_t, DI> d8;
    const auto bytes = hn::And(hn::BitCast(d8, hn::LoadU(DB(), p)), hn::Set(d8, 0x7F));
    return !hn::AllFalse(d8, hn::Gt(bytes, hn::Set(d8, bound)));
  }

  static HWY_INLINE bool any_nan(F a) { return !hn::AllTrue(DF(), hn::Eq(a.v, a.v)); }
  // 0, 1, 2, … across the lane.
  static HWY_INLINE I iota() { return I(hn::Iota(DI(), 0)); }
  // Returns the largest element. REQUIRES: no element is negative.
  static HWY_INLINE std::uint32_t reduce_max_u31(I a) {
    return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), a.v)));
  }
  // Returns true if any element, unsigned, is below `bound`.
  static HWY_INLINE bool any_below_u(I a, std::uint32_t bound) {
    return !hn::AllFalse(DU(), hn::Lt(unsigned_of(a.v), hn::Set(DU(), bound)));
  }
};

}  // namespace octavo::OCTAVO_LANE
