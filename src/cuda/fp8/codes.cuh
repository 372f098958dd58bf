// Converts floats to FP8 codes, in hardware if it supports this, else in software with the same bits.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/fp8.h"
#include "cuda/runtime/arch.h"

#include <octavo/fp8.h>

#include <cstdint>

namespace octavo::cuda {

template <class Codec>
__device__ inline std::uint32_t code_of(float x) {
  return static_cast<std::uint32_t>(Codec::cast(scalar::F32(x)).v);
}

// Returns the codes of `low` and `high` in the two lower bytes.
__device__ inline std::uint32_t code_pair(fp8::Element element, float low, float high) {
  if constexpr (converts_fp8(kArch)) {
    std::uint16_t out = 0;
    if (element == fp8::Element::e4m3)
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
    else
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
    return out;
  } else {
    return element == fp8::Element::e4m3 ? code_of<codecs::E4M3>(low) | code_of<codecs::E4M3>(high) << 8
                                         : code_of<codecs::E5M2>(low) | code_of<codecs::E5M2>(high) << 8;
  }
}

// Returns eight codes.
__device__ inline uint2 codes_of(fp8::Element element, const float* x) {
  return make_uint2(code_pair(element, x[0], x[1]) | code_pair(element, x[2], x[3]) << 16,
                    code_pair(element, x[4], x[5]) | code_pair(element, x[6], x[7]) << 16);
}

// Transposes 4 x 4 bytes.
__device__ inline void transpose4(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

// Transposes 8 x 8 bytes.
__device__ inline void transpose8(uint2 (&rows)[8]) {
  transpose4(rows[0].x, rows[1].x, rows[2].x, rows[3].x);
  transpose4(rows[0].y, rows[1].y, rows[2].y, rows[3].y);
  transpose4(rows[4].x, rows[5].x, rows[6].x, rows[7].x);
  transpose4(rows[4].y, rows[5].y, rows[6].y, rows[7].y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t upper = rows[i].y;
    rows[i].y = rows[i + 4].x;
    rows[i + 4].x = upper;
  }
}

}  // namespace octavo::cuda
