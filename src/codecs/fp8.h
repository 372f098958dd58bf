// "fp8" (E4M3, no infinities) and "fp8-e5m2" use one byte per element in blocks of 256, with the block's
// maximum at the format's largest finite value. Values are rounded to nearest even with saturation, and zero
// keeps its sign, as in hardware.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/format.h"
#include "formula/narrow.h"

namespace octavo::codecs {

template <int kMantissa, int kBias, std::int32_t kLargestCode, std::int32_t kFirstNan>
struct Fp8 : BlockCodec<8> {
  OCTAVO_HD static constexpr std::int16_t code_bias(Moment) {
    return -static_cast<std::int16_t>((128 - kBias) << kMantissa);
  }

  static constexpr int kShift = 23 - kMantissa;  // from a float's mantissa to the code's
  static constexpr std::int32_t kRebias = (127 - kBias) << 23;
  static constexpr float kLargest = std::bit_cast<float>((kLargestCode << kShift) + kRebias);
  static constexpr float kSmallestNormal = std::bit_cast<float>((128 - kBias) << 23);
  static constexpr float kUnit =
      std::bit_cast<float>((128 - kBias - kMantissa) << 23);  // the unit of the subnormals

  template <Moment kMoment>
  static constexpr std::array<float, 256> values() {
    std::array<float, 256> out{};
    for (int code = 0; code < 256; ++code) {
      const int magnitude = code & 0x7F;
      const float finite = magnitude < (1 << kMantissa)
                               ? static_cast<float>(magnitude) * kUnit
                               : std::bit_cast<float>((magnitude << kShift) + kRebias);
      // E5M2 has one code for infinity before its NaNs. E4M3 has none.
      const float value =
          magnitude <= kLargestCode
              ? finite
              : std::bit_cast<float>(magnitude < kFirstNan ? formula::kInf32 : formula::kNan32);
      out[static_cast<std::size_t>(code)] = code < 128 ? value : -value;
    }
    return out;
  }

  template <Moment, class L>
  static typename L::F decode(typename L::I code) {
    using F = typename L::F;
    using I = typename L::I;
    // A subnormal that is read as a normal number gives half of the smallest normal plus half of its true
    // value. So twice that minus the smallest normal is the true value. All of it is exact.
    const F normal = from_bits(shl<kShift>(code & I(0x7F)) + I(kRebias));
    const F magnitude = min(normal, fma(F(2.0F), normal, F(-kSmallestNormal)));
    const I value = bits(magnitude) | shl<24>(code & I(0x80));
    if constexpr (kLargestCode + 1 == kFirstNan) {
      return from_bits(ones_where(value, normal > F(kLargest)));  // a NaN
    } else {
      const I infinite = shl<24>(code & I(0x80)) | I(formula::kInf32);
      const F largest_infinite = from_bits(shl<kShift>(I(kFirstNan - 1)) + I(kRebias));
      return from_bits(ones_where(select(normal > F(kLargest), infinite, value), normal > largest_infinite));
    }
  }

  // Decodes four vectors of codes that are not NaN by the CPU's conversion from fp16. With its exponent and
  // mantissa in fp16's bit positions, a number is too small by a power of two, subnormals included.
  static constexpr std::int8_t kLastNumber = kFirstNan - 1;
  template <class L>
  static void decode4(const std::uint8_t* codes, float* out) {
    using F = typename L::F;
    constexpr int kToHalf = 10 - kMantissa;
    constexpr auto kMask = static_cast<std::int16_t>(0x8000 | (0x7F << kToHalf));
    const F factor(std::bit_cast<float>((127 + 15 - kBias) << 23));
    for (int i = 0; i < 4 * L::kWidth; i += 2 * L::kWidth) {
      F low, high;
      L::template load_halves<kToHalf>(codes + i, kMask, low, high);
      L::store(low * factor, out + i);
      L::store(high * factor, out + i + L::kWidth);
    }
  }

  // Returns the code of a magnitude minus code_bias. The function adds 2^kShift times the magnitude's power
  // of two (at least the smallest normal's). That leaves the kMantissa + 1 leading bits, rounded to nearest
  // even, at the end of the sum. Power and bits together are the code, subnormals included.
  template <class F>
  OCTAVO_HD static auto magnitude_code(F magnitude) {
    using I = decltype(bits(magnitude));
    const I power =
        max(bits(magnitude) & I(formula::kInf32), I(std::bit_cast<std::int32_t>(kSmallestNormal)));
    const I anchor = power + I(kShift << 23);
    return bits(magnitude + from_bits(anchor)) - anchor + shr<kShift>(power);
  }

  template <Moment kMoment, class L>
  OCTAVO_HD static typename L::I encode(typename L::F x, typename L::F raw, typename L::I& /*suspect*/) {
    using F = typename L::F;
    using I = typename L::I;
    const I b = bits(x);
    const I code = magnitude_code(min(from_bits(b & I(0x7FFFFFFF)), F(kLargest)));
    if constexpr (kMoment == Moment::second) {
      // Zero has the bits 0. Any other variance gets at least code 1.
      return max(code, min_u(bits(raw), I(1)) - I(code_bias(kMoment)));
    } else {
      return code + (shr<24>(b) & I(0x80));
    }
  }

  // Encodes a single value that is not in a block, as the hardware's cvt.rn.satfinite does. Infinities become
  // the largest number, and every NaN becomes the code kNanCode.
  static constexpr std::int32_t kNanCode = 0x7F;
  template <class F>
  OCTAVO_HD static auto cast(F x) {
    using I = decltype(bits(x));
    const I b = bits(x);
    const I magnitude = min(b & I(0x7FFFFFFF), I(std::bit_cast<std::int32_t>(kLargest)));
    const I code = magnitude_code(from_bits(magnitude)) + I(code_bias(Moment::first));
    return select(is_nan(x), I(kNanCode), code + (shr<24>(b) & I(0x80)));
  }

  // Encodes four vectors. A block's maximum divided by its scale is kLargest after three roundings, which
  // round back to it, so no value is above.
  static constexpr bool kEncodesFour = true;
  template <Moment kMoment, class L, class Of>
  requires(L::kSimd) static void encode4(const Of& of, typename L::I (&/*suspect*/)[4], std::uint8_t* codes) {
    using I = typename L::I;
    using W = typename L::W;
    const auto code = [&](auto x) { return magnitude_code(from_bits(bits(x) & I(0x7FFFFFFF))); };
    const auto two = [&](int i) {
      const auto a = of(i), b = of(i + 1);
      const W biased = W(code(a.x), code(b.x)) + W(code_bias(kMoment));
      if constexpr (kMoment == Moment::first) {
        return typename L::SignedW{biased, W(bits(a.x), bits(b.x))};
      } else {
        return max(biased, min_u(W(bits(a.raw), bits(b.raw)), W(1)));
      }
    };
    const auto low = two(0);
    store_bytes(low, two(2), codes);
  }
};

struct E4M3 : Fp8<3, 7, 0x7E, 0x7F> {
  static constexpr std::string_view kName = "fp8";
  static constexpr std::array<std::string_view, 1> kAliases = {"fp8-e4m3"};
  static constexpr std::string_view kElement = "float8_e4m3fn";
};
struct E5M2 : Fp8<2, 15, 0x7B, 0x7D> {
  static constexpr std::string_view kName = "fp8-e5m2";
  static constexpr std::string_view kElement = "float8_e5m2";
};
static_assert(E4M3::kLargest == 448.0F && E5M2::kLargest == 57344.0F);

}  // namespace octavo::codecs
