// "8bit": one byte per element, the dynamic maps of bitsandbytes and torchao, blocks of 256.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/arithmetic_map.h"
#include "codecs/dynamic_map.h"

#include <octavo/types.h>

namespace octavo::codecs {

struct Int8 {
  static constexpr StateFormat kFormat = StateFormat::int8;
  static constexpr int kBits = 8;
  static constexpr bool kBlocked = true;
  static constexpr std::int64_t kDefaultBlock = 256;
  static constexpr float kLargest = 1.0F;  // the code value that a block's maximum gets
  static constexpr bool kRank1 = false;
  static constexpr bool kSuspects = true;  // the SIMD encoder leaves doubtful elements to the table

  // The map's value of a code; times the block's scale it is the moment.
  template <Moment kMoment, class L>
  static typename L::F decode(typename L::I code) {
    using F = typename L::F;
    using I = typename L::I;
    if constexpr (!L::kSimd) {
      static constexpr auto kValues = table<kMoment>();
      return F(kValues[static_cast<std::size_t>(code.v & 255)]);
    } else if constexpr (kMoment == Moment::first) {
      constexpr auto& a = kSigned8Arithmetic;
      const I ranked = code - I(127);
      const F f = to_float(ranked);
      const I fb = bits(f);
      const F value = magnitude(a, fb, correction8(a, max(ranked, I(0) - ranked)));
      const I signed_value = bits(value) | (fb & I::of(0x80000000U));
      return from_bits(select(ranked == I(0), I(0), signed_value));
    } else {
      constexpr auto& a = kUnsigned8Arithmetic;
      const I rank = code + I(1);
      const I word = lookup16(a.correction.data(), shr<4>(rank));
      const I correction = (shrv(word, (rank + rank) & I(30)) & I(3)) - I(kCorrectionBias);
      const F value = magnitude(a, bits(to_float(rank)), correction);
      return select(code == I(255), F(1.0F), value);
    }
  }

  // The code nearest to x, the moment over its block's scale. `positive` tells that the moment itself is above zero:
  // then a variance's code is never that of zero. `suspect` gets the smallest distance to a boundary.
  template <Moment kMoment, class L>
  static typename L::I encode(typename L::F x, typename L::F raw, typename L::I& suspect) {
    using F = typename L::F;
    using I = typename L::I;
    const I b = bits(x);
    const I magnitude = b & I(0x7FFFFFFF);
    if constexpr (!L::kSimd) {
      constexpr auto& buckets = pick<kMoment>();
      const std::uint32_t clamped = magnitude.u() < 0x3F800000U ? magnitude.u() : 0x3F800000U;
      const std::uint32_t bucket = clamped >> buckets.kLowBits;
      std::uint32_t q = 0;
      if (bucket >= buckets.kFirst) {
        q = (buckets.entry[bucket - buckets.kFirst] + (clamped & buckets.kLowMask)) >> buckets.kLowBits;
      }
      if constexpr (kMoment == Moment::first) {
        const auto rank = static_cast<std::int32_t>(q);
        return b.v < 0 ? (rank > 127 ? 0 : 127 - rank) : 127 + rank;
      } else {
        return q == 0 && raw.v > 0.0F ? 1 : static_cast<std::int32_t>(q);
      }
    } else if constexpr (kMoment == Moment::first) {
      const I rank = rank_of(kSigned8Arithmetic, from_bits(magnitude), suspect);
      const I sign = sar<31>(b);
      return I(127) + ((rank ^ sign) - sign);  // -1 for a negative maximum: the store clamps it to 0
    } else {
      const I fixed_low = I(2);
      const I rank = max(rank_of(kUnsigned8Arithmetic, from_bits(magnitude), suspect), fixed_low);
      return select(raw > F(0.0F), rank - I(1), I(0));
    }
  }

  static constexpr std::int32_t kSuspectBelow = (2 * kRankError) << kFractionBits;

 private:
  template <Moment kMoment>
  static constexpr std::array<float, 256> table() {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) {
      const auto i = static_cast<std::size_t>(code);
      if constexpr (kMoment == Moment::first) {
        values[i] = code < 127 ? -kSigned8.value[static_cast<std::size_t>(127 - code)]
                               : kSigned8.value[static_cast<std::size_t>(code - 127)];
      } else {
        values[i] = kUnsigned8.value[i];
      }
    }
    return values;
  }

  template <Moment kMoment>
  static constexpr auto& pick() {
    if constexpr (kMoment == Moment::first) {
      return kSigned8Buckets;
    } else {
      return kUnsigned8Buckets;
    }
  }

  // first[d] + step[d] * j, and the correction in units of the last place. `fb` holds the bits of q as a float.
  template <class I>
  static auto magnitude(const ArithmeticMap& a, I fb, I correction) {
    const I d = shr<23>(fb);
    const auto f = from_bits(fb & I(0x7FFFFFFF));
    const auto j = f - from_bits(fb & I(0x7F800000));
    return from_bits(bits(fma(lookup8(a.step.data(), d), j, lookup8(a.first.data(), d))) + correction);
  }

  template <class I>
  static I correction8(const ArithmeticMap& a, I rank) {
    const I word = lookup8(a.correction.data(), shr<4>(rank));
    return (shrv(word, (rank + rank) & I(30)) & I(3)) - I(kCorrectionBias);
  }

  template <class F, class I>
  static I rank_of(const ArithmeticMap& a, F x, I& suspect) {
    const F position = fma(to_float(bits(x)), F(a.log_scale), F(a.log_offset));
    const I below = truncate(max(position, F(0.0F)));
    const I k = add_where(below, x > lookup8(a.upper.data(), below));
    const F fixed = min(fma(lookup8(a.slope.data(), k), x, lookup8(a.offset.data(), k)), lookup8(a.last.data(), k));
    const I rank = truncate(fixed);
    suspect = min_u(suspect, shl<kFractionBits>(rank));
    return shr<kFractionBits>(rank);
  }
};

}  // namespace octavo::codecs
