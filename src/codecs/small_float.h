// "fp4" and "fp3" use 4 and 3 bits per element in blocks of 128, on small floating-point numbers: m is signed
// with 2 bits of exponent and subnormals (E2M1, E2M0), v is unsigned with 3 bits of exponent and without zero
// (E3M1, E3M0). A step rounds both stochastically. Rounded to nearest, a second moment with beta2 = 0.999
// changes by less than half a code at every step and never leaves its code, and a small steady first moment
// is lost next to a large one.
//
// Rounding adds random bits below the bits that are kept, and truncates.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/format.h"
#include "formula/stochastic_round.h"

namespace octavo::codecs {

// The codec of first moments. `kWidth` is the number of bits of a code.
template <int kWidth>
struct SmallFloat : BlockCodec<kWidth> {
  static constexpr std::int64_t kDefaultBlock = 128;
  static constexpr int kMantissa = kWidth - 3;
  static constexpr int kShift = 23 - kMantissa;  // the number of bits that rounding drops from a float
  static constexpr std::int32_t kOne = 127 << kMantissa;  // the kept bits of 1.0
  // The largest value of each moment has all bits of its code set but the sign.
  template <Moment kMoment>
  static constexpr float kTop = std::bit_cast<float>(
      (kOne + (kMoment == Moment::first ? (1 << (kWidth - 1)) - 1 - (1 << kMantissa) : (1 << kWidth) - 1))
      << kShift);
  static constexpr float kLargest = kTop<Moment::first>;

  static constexpr Rounding rounding(Moment) { return Rounding::stochastic; }
  OCTAVO_HD static constexpr std::int16_t code_bias(Moment) { return 0; }

  template <Moment kMoment>
  static constexpr std::array<float, 1 << kWidth> values() {
    std::array<float, 1 << kWidth> out{};
    for (int code = 0; code < 1 << kWidth; ++code) {
      auto& value = out[static_cast<std::size_t>(code)];
      if (kMoment == Moment::second) {
        value = std::bit_cast<float>((kOne + code) << kShift);
      } else {
        constexpr int kSign = 1 << (kWidth - 1);
        constexpr int kNormal = 1 << kMantissa;  // the code of 1.0
        const int magnitude = code & (kSign - 1);
        value = magnitude < kNormal ? static_cast<float>(magnitude) / static_cast<float>(kNormal)
                                    : std::bit_cast<float>((kOne - kNormal + magnitude) << kShift);
        if (code >= kSign) value = -value;
      }
    }
    return out;
  }

  // The bits that are added before the truncation when a value is rounded to nearest. A tie goes down.
  static constexpr std::int32_t kNearest = (1 << (kShift - 1)) - 1;

  // Returns the bits to add from sixteen uniform bits. The mean of a rounded first moment is the moment.
  //
  // Of a rounded second moment v, the mean of the logarithm is approximately that of v: between neighbouring
  // codes the probability of the upper one is t + c t (1 - t) for the linear fraction t, with c near 3/16
  // (fp4) and 3/8 (fp3). The update divides by the root of v. If the mean of v were kept, 1 / sqrt(v) and
  // thus the update would be too large by 8% (fp4) to 17% (fp3) on average.
  template <Moment kMoment, class I>
  OCTAVO_HD static I noise(I random16) {
    if constexpr (kMoment == Moment::second) {
      const I r = random16;
      random16 = r + shr<19 + kMantissa>(r * (I(3 << 16) - r * I(3)));
    }
    return shl<kShift - 16>(random16);
  }

  // Returns the code of a magnitude. `added` is kNearest or noise().
  template <Moment kMoment, class F, class I>
  OCTAVO_HD static I magnitude_code(F x, I added) {
    constexpr float kMost = kTop<kMoment> * (kMoment == Moment::first ? 2.0F : 1.0F);
    F from;
    if constexpr (kMoment == Moment::first) {
      // Subnormals become numbers from 1 to 2, and normal numbers are doubled, so that codes are contiguous.
      from = max(x + F(1.0F), x + x);
    } else {
      from = max(x, F(1.0F));  // the smallest value, so that a positive variance never becomes zero
    }
    return shr<kShift>(bits(min(from, F(kMost))) + added) - I(kOne);
  }

  // Returns a code. x is the moment divided by its block's scale.
  template <Moment kMoment, class F, class I>
  OCTAVO_HD static I code(F x, I added) {
    if constexpr (kMoment == Moment::second) {
      return magnitude_code<kMoment>(x, added);
    } else {
      const I b = bits(x);
      return magnitude_code<kMoment>(from_bits(b & I(0x7FFFFFFF)), added) |
             (shr<32 - kWidth>(b) & I(1 << (kWidth - 1)));
    }
  }

  // Outside a step, values are rounded to nearest.
  template <Moment kMoment, class L>
  OCTAVO_HD static typename L::I encode(typename L::F x, typename L::F /*raw*/, typename L::I& /*suspect*/) {
    return code<kMoment>(x, typename L::I(kNearest));
  }

  // Encodes four vectors.
  static constexpr bool kEncodesFour = true;
  template <Moment kMoment, class L, class Of>
  requires(L::kSimd) static void encode4(const Of& of, typename L::I (&/*suspect*/)[4], std::uint8_t* codes) {
    using W = typename L::W;
    const auto two = [&](int i) {
      const auto a = of(i), b = of(i + 1);
      return W(code<kMoment>(a.x, a.added), code<kMoment>(b.x, b.added));
    };
    const W low = two(0);
    store_bytes(low, two(2), codes);
  }
};

// The codec of second moments differs in the largest value.
template <class First>
struct SecondOf : First {
  static constexpr float kLargest = First::template kTop<Moment::second>;
};

struct Fp4 : SmallFloat<4> {
  static constexpr std::string_view kName = "fp4";
};
struct Fp3 : SmallFloat<3> {
  static constexpr std::string_view kName = "fp3";
};
static_assert(Fp4::kLargest == 6.0F && SecondOf<Fp4>::kLargest == 192.0F);
static_assert(Fp3::kLargest == 4.0F && SecondOf<Fp3>::kLargest == 128.0F);

}  // namespace octavo::codecs
