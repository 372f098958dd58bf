// "fp32" and "bf16": moments without blocks or scales. bf16 rounds first moments to nearest and second
// moments stochastically: to nearest, a bf16 variance with beta2 = 0.999 could grow but never shrink.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

namespace octavo::codecs {

struct Fp32 {
  static constexpr StateFormat kFormat = StateFormat::fp32;
  static constexpr int kBits = 32;
  static constexpr bool kBlocked = false;
  static constexpr std::int64_t kDefaultBlock = 0;
  static constexpr bool kRank1 = false;
};

struct Bf16 {
  static constexpr StateFormat kFormat = StateFormat::bf16;
  static constexpr int kBits = 16;
  static constexpr bool kBlocked = false;
  static constexpr std::int64_t kDefaultBlock = 0;
  static constexpr bool kRank1 = false;
};

}  // namespace octavo::codecs
