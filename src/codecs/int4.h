// "4bit" uses half a byte per element in blocks of 128: m on a dynamic-exponent map with zero, v on the map
// (code + 1) / 16 without zero. "4bit-rank1" has the same codes, with v scaled by the smallest of its
// per-axis maxima (Li et al. 2023).
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/dynamic_map.h"
#include "codecs/format.h"

namespace octavo::codecs {

struct Int4 : BlockCodec<4> {
  static constexpr std::string_view kName = "4bit";
  static constexpr std::int64_t kDefaultBlock = 128;

  static constexpr std::int16_t code_bias(Moment moment) { return moment == Moment::first ? 7 : -1; }

  template <Moment kMoment>
  static constexpr std::array<float, 16> values() {
    std::array<float, 16> out{};
    for (int code = 0; code < 16; ++code) {
      const float magnitude = kSigned4.value[static_cast<std::size_t>(code < 7 ? 7 - code : code - 7)];
      const float first = code < 7 ? -magnitude : magnitude;
      out[static_cast<std::size_t>(code)] =
          kMoment == Moment::first ? first : static_cast<float>(code + 1) / 16.0F;
    }
    return out;
  }

  template <Moment kMoment, class L>
  requires(!L::kSimd) static typename L::I
      encode(typename L::F x, typename L::F /*raw*/, typename L::I& /*suspect*/) {
    if constexpr (kMoment == Moment::second) {
      return second_code<L>(x);
    } else {
      const std::uint32_t b = bits(x).u();
      const std::int32_t rank = kSigned4Buckets.rank(b & 0x7FFFFFFFU);
      return (b >> 31) != 0 ? -rank : rank;
    }
  }

  // Encodes four vectors without memory look-ups. REQUIRES: |x| < 2.
  static constexpr bool kEncodesFour = true;
  template <Moment kMoment, class L, class Of>
  requires(L::kSimd) static void encode4(const Of& of, typename L::I (&/*suspect*/)[4], std::uint8_t* codes) {
    using W = typename L::W;
    const auto two = [&](int i) {
      const auto a = of(i), b = of(i + 1);
      if constexpr (kMoment == Moment::second) {
        return W(second_code<L>(a.x), second_code<L>(b.x)) + W(code_bias(kMoment));
      } else {
        const W rank(first_rank<L>(a.x), first_rank<L>(b.x));
        return apply_sign(rank, W(bits(a.x), bits(b.x))) + W(code_bias(kMoment));
      }
    };
    const W low = two(0);
    store_bytes(low, two(2), codes);
  }

 private:
  // Rounds 16x to nearest, ties down: it truncates the float just below plus a half. Anything under 1/16 is
  // code 0.
  template <class L>
  static typename L::I second_code(typename L::F x) {
    using F = typename L::F;
    using I = typename L::I;
    const F scaled = max(x, F(0.0625F)) * F(16.0F);
    return truncate(from_bits(bits(scaled) - I(1)) + F(0.5F));
  }

  // Returns the rank of |x| by a table in a register. It works like Buckets, but covers only the boundaries
  // from kBegin to kEnd. Each of the others needs a comparison.
  template <int kSize, int kMantissaBits, int kLowExponent, int kBegin, int kEnd>
  struct Few {
    static constexpr int kLowBits = 23 - kMantissaBits;
    static constexpr std::int32_t kLowMask = (1 << kLowBits) - 1;
    static constexpr std::int32_t kFirst = (127 + kLowExponent) << 23;
    alignas(64) std::array<std::int32_t, kSize> entry{};

    constexpr Few() {
      for (int i = 0; i < kSize; ++i) {
        const std::int32_t first = kFirst + (i << kLowBits);
        std::int32_t e = 0;
        int within = 0;
        for (int q = kBegin; q < kEnd; ++q) {
          const auto boundary = std::bit_cast<std::int32_t>(kSigned4.boundary(q));
          if (boundary < kFirst) throw "a boundary is below the table";
          if (boundary < first) e += 1 << kLowBits;
          if (boundary < first || boundary > first + kLowMask) continue;
          e += kLowMask - (boundary & kLowMask);
          if (++within > 1) throw "an entry holds two boundaries";
        }
        entry[static_cast<std::size_t>((first >> kLowBits) % kSize)] = e;
      }
    }

    template <class L>
    [[nodiscard]] typename L::I rank(typename L::I magnitude) const {
      using F = typename L::F;
      using I = typename L::I;
      const I clamped = max(magnitude, I(kFirst));
      const I at = shr<kLowBits>(clamped);
      I found;
      if constexpr (kSize == 32) {
        found = lookup32(entry.data(), at);
      } else {
        found = lookup8(entry.data(), at);
      }
      I out = shr<kLowBits>(found + (clamped & I(kLowMask)));
      const auto compare = [&](int q) {
        out = add_where(out, from_bits(magnitude) > F(kSigned4.boundary(q)));
      };
      for (int q = 0; q < kBegin; ++q) compare(q);
      for (int q = kEnd; q < 8; ++q) compare(q);
      return out;
    }
  };
  template <class L>
  static typename L::I first_rank(typename L::F x) {
    using I = typename L::I;
    static constexpr std::conditional_t<L::kLookup32, Few<32, 1, -15, 0, 7>, Few<8, 0, -7, 1, 6>> kFew;
    return kFew.template rank<L>(bits(x) & I(0x7FFFFFFF));
  }
};

struct Int4Rank1 : Rank1Scaled<Int4> {
  static constexpr std::string_view kName = "4bit-rank1";
};

}  // namespace octavo::codecs
