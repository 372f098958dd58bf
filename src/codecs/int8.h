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

  // Returns the map's value of every code. That value times the block's scale is the moment.
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

  // Computes the same values by arithmetic.
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
        shr<4>(q);  // 9 or 17 of them: the last code, 1.0, wraps to the first; neither needs a correction
    const I word =
        kMoment == Moment::first ? lookup8(a.correction.data(), group) : lookup16(a.correction.data(), group);
    const I value = bits(line) + (shrv(word, twice & I(30)) & I(3));
    return from_bits(kMoment == Moment::first ? value | (ranked & I::of(0x80000000U)) : value);
  }

  // Returns the code nearest to x, minus code_bias, by one table look-up. x is the moment divided by its
  // block's scale and `raw` is the moment itself: if `raw` is above zero, a variance never gets the code of
  // zero. A negative maximum (the map has no -1) gives -1 after the bias is added, and stores clamp it to 0.
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

  // Encodes four vectors without memory look-ups. `of(i)` gives x and raw of vector i, `suspect` gets the
  // distances to a boundary in the top bits, and `beside(i)` is called after vector i so that the caller can
  // do other work there.
  static constexpr bool kEncodesFour = true, kTakesBeside = true;
  template <Moment kMoment, class L, class Of, class Beside>
  requires(L::kSimd) static void encode4(const Of& of, typename L::I (&suspect)[4], std::uint8_t* codes,
                                         const Beside& beside) {
    using I = typename L::I;
    using W = typename L::W;
    constexpr int kBase = kRankBase >> kFractionBits;  // 16-bit numbers, added and subtracted without a carry
    const auto ranked = [&](int i, auto x) {
      const I fixed = fixed_rank<kMoment, L>(x);
      suspect[i] = shl<32 - kFractionBits>(fixed);
      beside(i);
      return shr<kFractionBits>(fixed);
    };
    const auto two = [&](int i) {
      const auto a = of(i);
      const I first = ranked(i, a.x);
      const auto b = of(i + 1);
      const W based = W::of_unsigned(first, ranked(i + 1, b.x));
      if constexpr (kMoment == Moment::first) {
        const W rank = based + W(static_cast<std::int16_t>(-kBase));
        return apply_sign(rank, W(bits(a.x), bits(b.x))) + W(code_bias(kMoment));
      } else {
        // The lowest class starts at rank 2; only zero itself goes below it.
        const W code = based + W(static_cast<std::int16_t>(code_bias(kMoment) - kBase));
        return sub_where_zero(code, W(bits(a.raw), bits(b.raw)));
      }
    };
    const W low = two(0);
    store_bytes(low, two(2), codes);
  }

  static constexpr std::int16_t code_bias(Moment moment) { return moment == Moment::first ? 127 : -1; }

  static constexpr std::uint32_t kSuspectBelow = static_cast<std::uint32_t>(2 * kRankError)
                                                 << (32 - kFractionBits);

 private:
  // Returns the bits of 2^23 plus the rank in fixed point, for a SIMD lane.
  template <Moment kMoment, class L>
  static typename L::I fixed_rank(typename L::F x) {
    using F = typename L::F;
    using I = typename L::I;
    constexpr auto& a = arithmetic<kMoment>();
    const F magnitude =
        kMoment == Moment::first ? from_bits(bits(x) & I(0x7FFFFFFF)) : x;  // a variance is not negative
    const I lower =
        lookup_bytes(a.lower_class.data(), saturated_sub_bytes(shr<24>(bits(magnitude)), kFirstTop));
    const I k = add_where(lower, magnitude > lookup8(a.upper.data(), lower));
    const F line = fma(lookup8(a.slope.data(), k), magnitude, lookup8(a.offset.data(), k));
    return bits(min(line, lookup8(a.last.data(), k)));
  }

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
