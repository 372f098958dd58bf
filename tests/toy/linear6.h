// "6bit" uses six bits per element in blocks of 128: m on (code - 31) / 32, v on (code + 1) / 64, without
// zero. It is a toy for tests, and the example of docs/guides/add_a_format.md.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/format.h"
#include "lane/scalar.h"

namespace octavo::codecs {

// BlockCodec<6> has the properties of most six-bit codecs: scales by blocks, a block's maximum at 1, packed
// codes. A codec can override any of its constants.
struct Linear6 : BlockCodec<6> {
  static constexpr std::string_view kName = "6bit";
  static constexpr std::int64_t kDefaultBlock = 128;

  // The code is the result of encode plus this; below 0 it is 0.
  OCTAVO_HD static constexpr std::int16_t code_bias(Moment moment) {
    return moment == Moment::first ? 31 : -1;
  }

  // Returns the value of every code.
  template <Moment kMoment>
  static constexpr std::array<float, 64> values() {
    std::array<float, 64> out{};
    for (int code = 0; code < 64; ++code) {
      out[static_cast<std::size_t>(code)] = kMoment == Moment::first ? static_cast<float>(code - 31) / 32.0F
                                                                     : static_cast<float>(code + 1) / 64.0F;
    }
    return out;
  }

  // x is the moment divided by its block's scale, |x| <= 1 except for rounding; raw is the moment itself.
  template <Moment kMoment, class L>
  OCTAVO_HD static typename L::I encode(typename L::F x, typename L::F /*raw*/, typename L::I& /*suspect*/) {
    using F = typename L::F;
    using I = typename L::I;
    const I b = bits(x);
    const F steps = from_bits(b & I(0x7FFFFFFF)) * F(kMoment == Moment::first ? 32.0F : 64.0F);
    // Rounds to an integer, ties to even, and reverts a tie that went up. Both differences are exact.
    const F even = (steps + F(0x1p23F)) - F(0x1p23F);
    const I rank = truncate(select(even - steps > F(0x1.fffffep-2F), even - F(1.0F), even));
    if constexpr (kMoment == Moment::second) {
      return max(rank, I(1));  // v > 0 must not become 0: this map has no zero
    } else {
      return select(b < I(0), I(0) - rank, rank);
    }
  }
};

}  // namespace octavo::codecs
