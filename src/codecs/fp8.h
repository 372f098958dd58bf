// "fp8" (E4M3, no infinities) and "fp8-e5m2": one byte per element in blocks of 256, the block's maximum at the
// format's largest finite value. Rounded to nearest even with saturation, as the hardware conversions do.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"

#include <octavo/types.h>

namespace octavo::codecs {

template <StateFormat kName, int kMantissa, int kBias, std::int32_t kLargestCode, std::int32_t kFirstNan>
struct Fp8 {
  static constexpr StateFormat kFormat = kName;
  static constexpr int kBits = 8;
  static constexpr bool kBlocked = true;
  static constexpr std::int64_t kDefaultBlock = 256;
  static constexpr bool kRank1 = false;
  static constexpr bool kSuspects = false;
  static constexpr std::uint32_t kSuspectBelow = 0;

  static constexpr std::int16_t code_bias(Moment) { return 0; }

  static constexpr int kShift = 23 - kMantissa;  // from a float's mantissa to the code's
  static constexpr std::int32_t kRebias = (127 - kBias) << 23;
  static constexpr float kLargest = std::bit_cast<float>((kLargestCode << kShift) + kRebias);
  static constexpr float kSmallestNormal = std::bit_cast<float>((128 - kBias) << 23);
  static constexpr float kUnit = std::bit_cast<float>((128 - kBias - kMantissa) << 23);  // of the subnormals

  template <Moment kMoment>
  static constexpr std::array<float, 256> values() {
    std::array<float, 256> out{};
    for (int code = 0; code < 256; ++code) {
      const int magnitude = code & 0x7F;
      const float finite = magnitude < (1 << kMantissa) ? static_cast<float>(magnitude) * kUnit : std::bit_cast<float>((magnitude << kShift) + kRebias);
      // E5M2 has one code for infinity before its NaNs, E4M3 none.
      const float value = magnitude <= kLargestCode ? finite : std::bit_cast<float>(magnitude < kFirstNan ? formula::kInf32 : formula::kNan32);
      out[static_cast<std::size_t>(code)] = code < 128 ? value : -value;
    }
    return out;
  }

  template <Moment, class L>
  static typename L::F decode(typename L::I code) {
    using F = typename L::F;
    using I = typename L::I;
    const I magnitude = code & I(0x7F);
    const I normal = shl<kShift>(magnitude) + I(kRebias);
    const I subnormal = bits(to_float(magnitude) * F(kUnit));
    const I finite = select(magnitude < I(1 << kMantissa), subnormal, normal);
    const I special = select(magnitude < I(kFirstNan), I(formula::kInf32), I(formula::kNan32));
    return from_bits(select(magnitude > I(kLargestCode), special, finite) | shl<24>(code & I(0x80)));
  }

  template <Moment kMoment, class L>
  static typename L::I encode(typename L::F x, typename L::F raw, typename L::I& /*suspect*/) {
    using F = typename L::F;
    using I = typename L::I;
    const I b = bits(x);
    const F magnitude = min(from_bits(b & I(0x7FFFFFFF)), F(kLargest));
    const I mb = bits(magnitude);
    const I normal = shr<kShift>(mb - I(kRebias) + I((1 << (kShift - 1)) - 1) + (shr<kShift>(mb) & I(1)));
    // In units of the subnormal the magnitude is below 2^kMantissa: adding 2^23 rounds it to an integer, to even.
    const I subnormal = bits(magnitude * F(1.0F / kUnit) + F(0x1p23F)) - I(std::bit_cast<std::int32_t>(0x1p23F));
    const I code = select(magnitude < F(kSmallestNormal), subnormal, normal);
    if constexpr (kMoment == Moment::second) {
      return select(raw > F(0.0F), max(code, I(1)), code);
    } else {
      return select(code == I(0), I(0), code | (shr<24>(b) & I(0x80)));
    }
  }
};

using E4M3 = Fp8<StateFormat::fp8_e4m3, 3, 7, 0x7E, 0x7F>;
using E5M2 = Fp8<StateFormat::fp8_e5m2, 2, 15, 0x7B, 0x7D>;
static_assert(E4M3::kLargest == 448.0F && E5M2::kLargest == 57344.0F);

}  // namespace octavo::codecs
