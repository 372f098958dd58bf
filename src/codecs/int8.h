// "8bit": one byte per element, the dynamic maps of bitsandbytes and torchao, blocks of 256.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/arithmetic_map.h"
#include "codecs/dynamic_map.h"
#include "codecs/format.h"

namespace octavo::codecs {

struct Int8 : BlockCodec<8> {
  static constexpr std::string_view kName = "8bit";
  static constexpr bool kSuspects = true;

  // The map's value of every code; times the block's scale it is the moment.
  template <Moment kMoment>
  static constexpr std::array<float, 256> values() {
    if constexpr (kMoment == Moment::second) return kUnsigned8.value;
    std::array<float, 256> out{};
    for (int code = 0; code < 256; ++code) {
      const int q = code < 127 ? 127 - code : code - 127;
      out[static_cast<std::size_t>(code)] = code < 127 ? -kSigned8.value[static_cast<std::size_t>(q)]
                                                       : kSigned8.value[static_cast<std::size_t>(q)];
    }
    return out;
  }

  // The same by arithmetic.
  template <Moment kMoment, class L>
  static typename L::F decode(typename L::I code) {
    using I = typename L::I;
    constexpr auto& a = arithmetic<kMoment>();
    const I ranked = kMoment == Moment::first ? code - I(127) : code + I(1);
    const I q = kMoment == Moment::first ? abs(ranked) : ranked;
    const I twice = q + q;
    const auto f = to_float(twice | I(1));
    const I d = shr<23>(bits(f));
    const auto line =
        fma(lookup8(a.half_step.data(), d), f - lookup8(a.power.data(), d), lookup8(a.edge.data(), d));
    const I group =
        shr<4>(q);  // 9 or 17 of them: the last code, 1.0, wraps to the first, both of which need none
    const I word =
        kMoment == Moment::first ? lookup8(a.correction.data(), group) : lookup16(a.correction.data(), group);
    const I value = bits(line) + (shrv(word, twice & I(30)) & I(3));
    return from_bits(kMoment == Moment::first ? value | (ranked & I::of(0x80000000U)) : value);
  }

  // The code nearest to x, less code_bias, by one table look-up. x is the moment over its block's scale and
  // `raw` the moment itself: where that is above zero, a variance's code is never that of zero. A negative
  // maximum (there is no -1) gives -1 with the bias added: stores clamp it to 0.
  template <Moment kMoment, class L>
  requires(!L::kSimd) static typename L::I
      encode(typename L::F x, typename L::F raw, typename L::I& /*suspect*/) {
    const std::uint32_t b = bits(x).u();
    const std::int32_t rank = pick<kMoment>().rank(b & 0x7FFFFFFFU);
    if constexpr (kMoment == Moment::first) {
      return (b >> 31) != 0 ? -rank : rank;
    } else {
      return rank == 0 && raw.v > 0.0F ? 2 : rank + 1;
    }
  }

  // The same without memory; `suspect` gets the smallest distance to a boundary, in the top bits.
  template <Moment kMoment, class L>
  requires(L::kSimd) static typename L::I encode(typename L::F x, typename L::F raw, typename L::I& suspect) {
    using F = typename L::F;
    using I = typename L::I;
    constexpr auto& a = arithmetic<kMoment>();
    const I b = bits(x);
    const F magnitude =
        kMoment == Moment::first ? from_bits(b & I(0x7FFFFFFF)) : x;  // a variance is not negative
    const I lower =
        lookup_bytes(a.lower_class.data(), saturated_sub_bytes(shr<24>(bits(magnitude)), kFirstTop));
    const I k = add_where(lower, magnitude > lookup8(a.upper.data(), lower));
    const F line = fma(lookup8(a.slope.data(), k), magnitude, lookup8(a.offset.data(), k));
    const I fixed = bits(min(line, lookup8(a.last.data(), k)));
    suspect = min_u(suspect, shl<32 - kFractionBits>(fixed));
    const I rank = shr<kFractionBits>(fixed - I(kRankBase));
    if constexpr (kMoment == Moment::first) {
      return apply_sign(rank, b);
    } else {
      return sub_where(rank,
                       bits(raw) == I(0));  // the lowest class starts at rank 2: only zero itself goes below
    }
  }

  static constexpr std::int16_t code_bias(Moment moment) { return moment == Moment::first ? 127 : -1; }

  static constexpr std::uint32_t kSuspectBelow = static_cast<std::uint32_t>(2 * kRankError)
                                                 << (32 - kFractionBits);

 private:
  template <Moment kMoment>
  static constexpr auto& pick() {
    if constexpr (kMoment == Moment::first) {
      return kSigned8Buckets;
    } else {
      return kUnsigned8Buckets;
    }
  }

  template <Moment kMoment>
  static constexpr auto& arithmetic() {
    if constexpr (kMoment == Moment::first) {
      return kSigned8Arithmetic;
    } else {
      return kUnsigned8Arithmetic;
    }
  }
};

}  // namespace octavo::codecs
