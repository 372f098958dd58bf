// The lane of width one: the reference that every other lane equals in bits, and the lane of a CUDA thread.
//
// A lane is a pair of value types, F32 and I32, with the free functions below. Formulas and codecs are
// templates over them, so each is written once. Contract: every operation rounds once (IEEE nearest even,
// denormals kept), fma is fused, shifts are logical unless named sar, and a Mask is only produced by the
// comparisons here.
// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define OCTAVO_HD __host__ __device__
#else
#define OCTAVO_HD
#endif

namespace octavo::scalar {

struct Mask {
  bool v;
};

struct I32 {
  std::int32_t v;
  OCTAVO_HD I32(std::int32_t x = 0) : v(x) {}  // NOLINT(google-explicit-constructor): a constant is a lane
  [[nodiscard]] OCTAVO_HD std::uint32_t u() const { return static_cast<std::uint32_t>(v); }
  OCTAVO_HD static I32 of(std::uint32_t x) { return {static_cast<std::int32_t>(x)}; }
};

struct F32 {
  float v;
  OCTAVO_HD F32(float x = 0.0F) : v(x) {}  // NOLINT(google-explicit-constructor)
};

OCTAVO_HD inline F32 operator+(F32 a, F32 b) { return a.v + b.v; }
OCTAVO_HD inline F32 operator-(F32 a, F32 b) { return a.v - b.v; }
OCTAVO_HD inline F32 operator*(F32 a, F32 b) { return a.v * b.v; }
OCTAVO_HD inline F32 operator/(F32 a, F32 b) { return a.v / b.v; }
OCTAVO_HD inline F32 fma(F32 a, F32 b, F32 c) { return std::fma(a.v, b.v, c.v); }
OCTAVO_HD inline F32 sqrt(F32 a) { return std::sqrt(a.v); }
// min and max of values that are not NaN.
OCTAVO_HD inline F32 min(F32 a, F32 b) { return b.v < a.v ? b : a; }
OCTAVO_HD inline F32 max(F32 a, F32 b) { return b.v > a.v ? b : a; }
OCTAVO_HD inline Mask operator<(F32 a, F32 b) { return {a.v < b.v}; }
OCTAVO_HD inline Mask operator>(F32 a, F32 b) { return {a.v > b.v}; }
OCTAVO_HD inline Mask is_nan(F32 a) { return {a.v != a.v}; }

OCTAVO_HD inline I32 operator+(I32 a, I32 b) { return I32::of(a.u() + b.u()); }
OCTAVO_HD inline I32 operator-(I32 a, I32 b) { return I32::of(a.u() - b.u()); }
OCTAVO_HD inline I32 operator*(I32 a, I32 b) { return I32::of(a.u() * b.u()); }
OCTAVO_HD inline I32 operator&(I32 a, I32 b) { return {a.v & b.v}; }
OCTAVO_HD inline I32 operator|(I32 a, I32 b) { return {a.v | b.v}; }
OCTAVO_HD inline I32 operator^(I32 a, I32 b) { return {a.v ^ b.v}; }
template <int kBits>
OCTAVO_HD inline I32 shl(I32 a) {
  return I32::of(a.u() << kBits);
}
template <int kBits>
OCTAVO_HD inline I32 shr(I32 a) {
  return I32::of(a.u() >> kBits);
}
template <int kBits>
OCTAVO_HD inline I32 sar(I32 a) {
  return {a.v >> kBits};
}
OCTAVO_HD inline I32 min(I32 a, I32 b) { return b.v < a.v ? b : a; }
OCTAVO_HD inline I32 max(I32 a, I32 b) { return b.v > a.v ? b : a; }
OCTAVO_HD inline I32 min_u(I32 a, I32 b) { return b.u() < a.u() ? b : a; }
OCTAVO_HD inline Mask operator<(I32 a, I32 b) { return {a.v < b.v}; }
OCTAVO_HD inline Mask operator>(I32 a, I32 b) { return {a.v > b.v}; }
OCTAVO_HD inline Mask operator==(I32 a, I32 b) { return {a.v == b.v}; }

OCTAVO_HD inline F32 select(Mask m, F32 yes, F32 no) { return m.v ? yes : no; }
OCTAVO_HD inline I32 select(Mask m, I32 yes, I32 no) { return m.v ? yes : no; }

OCTAVO_HD inline I32 bits(F32 a) { return {std::bit_cast<std::int32_t>(a.v)}; }
OCTAVO_HD inline F32 from_bits(I32 a) { return {std::bit_cast<float>(a.v)}; }
OCTAVO_HD inline F32 to_float(I32 a) { return {static_cast<float>(a.v)}; }
// Returns the lowest int32 if the value is NaN or does not fit.
OCTAVO_HD inline I32 truncate(F32 a) {
  return {a.v > -0x1p31F && a.v < 0x1p31F ? static_cast<std::int32_t>(a.v) : INT32_MIN};
}

struct Lane {
  using F = F32;
  using I = I32;
  static constexpr int kWidth = 1;
  static constexpr bool kSimd = false;  // codecs use look-up tables
  static constexpr bool kTableBeside = false;

  static F load(const float* p) { return {*p}; }
  static void store(F a, float* p) { *p = a.v; }
  static I load_u8(const std::uint8_t* p) { return {*p}; }
  static I load_i8(const std::int8_t* p) { return {*p}; }
  static I load_u16(const std::uint16_t* p) { return {*p}; }
  static I load_i16(const std::int16_t* p) { return {*p}; }
  // REQUIRES: the value is in the type's range, except for store_u8, which clamps.
  static void store_u8(I a, std::uint8_t* p) {
    *p = static_cast<std::uint8_t>(a.v < 0 ? 0 : a.v > 255 ? 255 : a.v);
  }
  static void store_i8(I a, std::int8_t* p) { *p = static_cast<std::int8_t>(a.v); }
  static void store_u16(I a, std::uint16_t* p) { *p = static_cast<std::uint16_t>(a.v); }
  static void store_i16(I a, std::int16_t* p) { *p = static_cast<std::int16_t>(a.v); }
  static bool any_nan(F a) { return is_nan(a).v; }
  // 0, 1, 2, … across the lane.
  static I iota() { return {0}; }
  static std::uint32_t reduce_max_u31(I a) { return a.u(); }
};

}  // namespace octavo::scalar
