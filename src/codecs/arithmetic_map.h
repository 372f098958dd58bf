// The dynamic maps without memory look-ups, for SIMD lanes: gathers are slow (and slower still with the mitigations
// that many servers run), but a table of 8 or 16 entries in a register costs one instruction.
//
// Decoding: the decade comes from the exponent of q, the value is first[d] + step[d] * j, and a correction of at most
// two units in the last place, two bits per code, makes it the map's exact value.
// Encoding: the decade comes from an approximate logarithm and one exact comparison, the rank from one fma in fixed
// point with 16 fraction bits. Where the fraction lies so close to a boundary that rounding could decide, the lane
// reports the element as suspect and the caller encodes it again by table. tests/ check both against the maps.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/dynamic_map.h"

#include <array>
#include <bit>
#include <cstdint>

namespace octavo::codecs {

// Class k = 0 … 7 of a map: the decades that exist, and for encoding the last magnitude (1.0) as a class of its own.
struct ArithmeticMap {
  alignas(64) std::array<float, 8> first{};   // value = first + step * j, indexed by the low bits of q's exponent
  alignas(64) std::array<float, 8> step{};
  alignas(64) std::array<std::int32_t, 17> correction{};  // two bits per q, 16 to a word

  alignas(64) std::array<float, 8> upper{};   // class k ends here: x > upper[k] belongs to a later class
  alignas(64) std::array<float, 8> slope{};   // rank in fixed point = offset + slope * x
  alignas(64) std::array<float, 8> offset{};
  alignas(64) std::array<float, 8> last{};    // the largest rank of the class, in fixed point
  float log_scale = 0, log_offset = 0;        // class = floor(log_offset + log_scale * bits(x)), or one less than it
};

inline constexpr int kFractionBits = 16;
// Bound of all errors of the fixed-point rank, in units of 2^-16: the fma's and the truncation's rounding (1 + 1 where
// the rank is below 256), the constants' (0.5 + 0.5), and the map's distance from the straight line (2 ulp, below 1.5).
inline constexpr int kRankError = 6;

inline constexpr int kCorrectionBias = 2;  // the two bits hold -2 … 1

constexpr void set_correction(ArithmeticMap& a, int q, int stored) {
  const int at = 2 * (q % 16);
  auto word = static_cast<std::uint32_t>(a.correction[static_cast<std::size_t>(q / 16)]);
  word = (word & ~(3U << at)) | (static_cast<std::uint32_t>(stored & 3) << at);
  a.correction[static_cast<std::size_t>(q / 16)] = static_cast<std::int32_t>(word);
}

// q of a magnitude is index + shift: the signed map's index is q, the unsigned map's is q - 1.
template <int kCount>
constexpr ArithmeticMap arithmetic_map(const Magnitudes<kCount>& map, int shift, int lowest_decade) {
  ArithmeticMap a;
  const auto value = [&](int q) { return map.value[static_cast<std::size_t>(q - shift)]; };
  const auto bits_of = [](float x) { return std::bit_cast<std::int32_t>(x); };
  const int top = kCount - 1 + shift;  // q of 1.0, a power of two

  // Decoding: per decade the step, among the few floats nearest to the ideal one, whose line misses the map by at most
  // kCorrectionBias units below and one above.
  for (int d = 0; (1 << d) <= top && d < 8; ++d) {  // q = 256 shares a slot with q = 1 and is left to the decoder
    const int n = 1 << d;
    const auto slot = static_cast<std::size_t>((127 + d) & 7);
    const int end = 2 * n <= top ? 2 * n : n + 1;
    const auto ideal = n > 1 && n < top ? static_cast<float>((static_cast<double>(value(2 * n - 1)) - static_cast<double>(value(n))) / (n - 1)) : 0.0F;
    bool found = false;
    for (int ulp = 0; ulp < 16 && !found; ++ulp) {
      const float step = ideal == 0.0F ? 0.0F : std::bit_cast<float>(bits_of(ideal) + ((ulp & 1) != 0 ? -(ulp + 1) / 2 : ulp / 2));
      found = true;
      for (int q = n; q < end && found; ++q) {
        const auto line = static_cast<float>(static_cast<double>(value(n)) + static_cast<double>(step) * (q - n));
        const int stored = bits_of(value(q)) - bits_of(line) + kCorrectionBias;
        found = stored >= 0 && stored <= 3;
        set_correction(a, q, stored);
      }
      a.first[slot] = value(n);
      a.step[slot] = step;
    }
    if (!found) throw "no line fits a decade";
  }
  set_correction(a, 0, kCorrectionBias);

  // Encoding classes: decade lowest_decade + k, then 1.0.
  const double unit = 1 << kFractionBits;
  for (int k = 0; k < 8; ++k) {
    const int n = 1 << (lowest_decade + k);
    const auto i = static_cast<std::size_t>(k);
    if (n >= top) {
      a.upper[i] = std::bit_cast<float>(0x7F800000);
      a.slope[i] = 0;
      a.offset[i] = static_cast<float>((top + 0.5) * unit);
      a.last[i] = a.offset[i];
      continue;
    }
    // Decade 0 of the signed map has one magnitude; with zero below it, it is the line through both.
    const double from = n == 1 ? 0.0 : static_cast<double>(value(n));
    const double rank = n == 1 ? 0.0 : n;
    const double step = n == 1 ? static_cast<double>(value(1))
                               : (static_cast<double>(value(2 * n - 1)) - static_cast<double>(value(n))) / (n - 1);
    a.upper[i] = map.boundary(2 * n - 1 - shift);
    a.slope[i] = static_cast<float>(unit / step);
    a.offset[i] = static_cast<float>((rank + 0.5 - from / step) * unit + kRankError);
    a.last[i] = static_cast<float>((2 * n - 1 + 0.5) * unit);
  }
  // bits(x) grows almost like log2(x); each boundary must land between its class and the one below, which leaves half
  // a class on either side for the error of the approximation (0.03 of a decade).
  const double classes = 0.30102999566398120 / (1 << 23);
  a.log_scale = static_cast<float>(classes);
  double sum = 0;
  int count = 0;
  for (int k = 0; k < 7; ++k, ++count) {
    sum += (k + 0.5) - static_cast<double>(a.log_scale) * bits_of(a.upper[static_cast<std::size_t>(k)]);
  }
  a.log_offset = static_cast<float>(sum / count);
  for (int k = 0; k < 7; ++k) {
    const double at = static_cast<double>(a.log_scale) * bits_of(a.upper[static_cast<std::size_t>(k)]) + static_cast<double>(a.log_offset);
    if (at < k + 0.05 || at > k + 0.95) throw "the approximate logarithm misses a class";
  }
  return a;
}

inline constexpr ArithmeticMap kSigned8Arithmetic = arithmetic_map(kSigned8, 0, 0);
inline constexpr ArithmeticMap kUnsigned8Arithmetic = arithmetic_map(kUnsigned8, 1, 1);

}  // namespace octavo::codecs
