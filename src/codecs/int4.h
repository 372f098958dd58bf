// "4bit": half a byte per element, blocks of 128; m on a dynamic-exponent map with zero, v on (code + 1) / 16
// without. "4bit-rank1": the same codes, with v scaled as in Li et al. 2023: by the smallest of its per-axis
// maxima.
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
  static typename L::I encode(typename L::F x, typename L::F /*raw*/, typename L::I& /*suspect*/) {
    using F = typename L::F;
    using I = typename L::I;
    if constexpr (kMoment == Moment::second) {
      // 16x to nearest, ties down: the float just below plus a half, truncated. Anything under 1/16 is code
      // 0.
      const F scaled = max(x, F(0.0625F)) * F(16.0F);
      return truncate(from_bits(bits(scaled) - I(1)) + F(0.5F));
    } else {
      const I b = bits(x);
      const I magnitude = b & I(0x7FFFFFFF);
      if constexpr (L::kSimd) {
        // Eight exact comparisons with the eight boundaries are shorter than finding the decade first.
        I rank(0);
        const F m = from_bits(magnitude);
        for (const float boundary : kBoundaries) rank = add_where(rank, m > F(boundary));
        return apply_sign(rank, b);
      } else {
        const std::int32_t rank = kSigned4Buckets.rank(magnitude.u());
        return b.v < 0 ? -rank : rank;
      }
    }
  }

 private:
  static constexpr std::array<float, 8> kBoundaries = {
      kSigned4.boundary(0), kSigned4.boundary(1), kSigned4.boundary(2), kSigned4.boundary(3),
      kSigned4.boundary(4), kSigned4.boundary(5), kSigned4.boundary(6), kSigned4.boundary(7)};
};

struct Int4Rank1 : AxisScaled<Int4> {
  static constexpr std::string_view kName = "4bit-rank1";
};

}  // namespace octavo::codecs
