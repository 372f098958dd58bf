// "fp32" and "bf16" store moments without blocks or scales. bf16 rounds first moments to nearest and second
// moments stochastically: rounded to nearest, a bf16 variance with beta2 = 0.999 could grow but never shrink.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/format.h"
#include "formula/narrow.h"
#include "formula/stochastic_round.h"

namespace octavo::codecs {

struct Fp32 : PlainCodec {
  static constexpr std::string_view kName = "fp32";
  static constexpr std::array<std::string_view, 1> kAliases = {"float32"};
  static constexpr std::string_view kElement = "float32";
  static constexpr int kBits = 32;
};

struct Bf16 : PlainCodec {
  static constexpr std::string_view kName = "bf16";
  static constexpr std::array<std::string_view, 1> kAliases = {"bfloat16"};
  static constexpr std::string_view kElement = "bfloat16";
  static constexpr int kBits = 16;
  static constexpr Rounding rounding(Moment moment) {
    return moment == Moment::second ? Rounding::stochastic : Rounding::nearest;
  }

  // Outside a step, values are rounded to nearest, but a positive variance is never rounded to zero.
  template <Moment kMoment, class F>
  OCTAVO_HD static auto encode(F x) {
    return keep_positive<kMoment>(x, formula::float_to_bf16(x));
  }
  // In a step, this encodes the elements index + lane of the parameter.
  template <Moment kMoment, class F, class I>
  OCTAVO_HD static I encode(F x, formula::RoundKey key, std::uint64_t index, I lane) {
    if constexpr (rounding(kMoment) == Rounding::stochastic) {
      const I half = formula::float_to_bf16_stochastic(x, formula::random16(key, index, lane));
      return keep_positive<kMoment>(x, half);
    } else {
      return encode<kMoment>(x);
    }
  }

 private:
  template <Moment kMoment, class F, class I>
  OCTAVO_HD static I keep_positive(F x, I half) {
    return kMoment == Moment::second ? select(x > F(0.0F), max(half, I(1)), half) : half;
  }
};

}  // namespace octavo::codecs
