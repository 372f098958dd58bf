// The dynamic maps without memory look-ups, for SIMD lanes. Gathers are slow, and slower still with the
// mitigations that many servers run, but a look-up in a table of 8 or 16 entries in a register is one
// instruction.
//
// Decoding: if q is the rank, 2q + 1 has the decade in its exponent and the odd number 2j + 1 in its
// mantissa. The value is edge + half_step * (2j + 1). A correction of at most three units in the last place,
// two bits per code, makes it the map's exact value. Encoding: the class of a magnitude (its decade) follows
// from its top eight bits and one exact comparison, and its rank from one fma in fixed point. If the fraction
// is so close to a boundary that rounding could decide, the element is reported as suspect and the caller
// encodes it again by table. So the result is always the nearest code.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/dynamic_map.h"

#include <array>
#include <bit>
#include <cstdint>

namespace octavo::codecs {

struct ArithmeticMap {
  // Indexed by the low three bits of the exponent of 2q + 1.
  alignas(64) std::array<float, 8> power{};  // subtracted from 2q + 1
  alignas(64) std::array<float, 8> edge{};
  alignas(64) std::array<float, 8> half_step{};
  alignas(64) std::array<std::int32_t, 17> correction{};  // two bits per q, 16 to a word

  // Encoding. Two binades share their top eight bits and contain at most one class boundary. This table gives
  // the class of the lower end, indexed by those bits minus kFirstTop, saturated.
  alignas(64) std::array<std::uint8_t, 16> lower_class{};
  // Indexed by class. The last class contains only the magnitude 1.
  alignas(64) std::array<float, 8> upper{};  // x > upper[k] belongs to class k + 1
  alignas(64) std::array<float, 8> slope{};  // rank in fixed point = offset + slope * x, at most last
  alignas(64) std::array<float, 8> offset{};
  alignas(64) std::array<float, 8> last{};
};

inline constexpr std::uint8_t kFirstTop = 52;
// The rank has 15 fraction bits, and 2^23 is added: the bits of the float are then kRankBase plus the
// fixed-point number.
inline constexpr int kFractionBits = 15;
inline constexpr std::int32_t kRankBase = 0x4B000000;
// The bound of all errors of the rank in units of 2^-15. Ranks are at most 2^8. The errors are 0.5 of the
// fma's rounding, 0.5 of the offset, 0.25 of the slope, and 2 ulp (2 units) between the map and the straight
// line.
inline constexpr int kRankError = 4;

constexpr void set_correction(ArithmeticMap& a, int q, int stored) {
  const int at = 2 * (q % 16);
  auto word = static_cast<std::uint32_t>(a.correction[static_cast<std::size_t>(q / 16)]);
  word = (word & ~(3U << at)) | (static_cast<std::uint32_t>(stored & 3) << at);
  a.correction[static_cast<std::size_t>(q / 16)] = static_cast<std::int32_t>(word);
}

// The q of a magnitude is index + shift: the signed map's index is q, the unsigned map's is q - 1.
template <int kCount>
constexpr void fit_decoder(ArithmeticMap& a, const Magnitudes<kCount>& map, int shift) {
  const auto value = [&](int q) { return map.value[static_cast<std::size_t>(q - shift)]; };
  const auto bits_of = [](float x) { return std::bit_cast<std::int32_t>(x); };
  const int top = kCount - 1 + shift;  // q of 1.0, a power of two
  // For each decade, this takes the line, of the few that are nearest to the ideal one, whose distance to
  // every value fits into two bits.
  for (int n = 1 << shift; n < top; n *= 2) {
    const auto slot = static_cast<std::size_t>((bits_of(static_cast<float>(2 * n)) >> 23) & 7);
    const double step =
        n > 1 ? (static_cast<double>(value(2 * n - 1)) - static_cast<double>(value(n))) / (n - 1) : 0.0;
    const auto half = static_cast<float>(step / 2);
    const auto base = static_cast<float>(static_cast<double>(value(n)) - step / 2);
    bool found = false;
    for (int trial = 0; trial < 128 && !found; ++trial) {
      const int ulp = trial % 16;
      const float edge = std::bit_cast<float>(bits_of(base) - trial / 16);
      const float slope =
          n == 1 ? 0.0F : std::bit_cast<float>(bits_of(half) + ((ulp & 1) != 0 ? -(ulp + 1) / 2 : ulp / 2));
      found = true;
      for (int q = n; q < 2 * n && found; ++q) {
        const auto line =
            static_cast<float>(static_cast<double>(edge) + static_cast<double>(slope) * (2 * (q - n) + 1));
        const int stored = bits_of(value(q)) - bits_of(line);
        found = stored >= 0 && stored <= 3;
        set_correction(a, q, stored);
      }
      a.power[slot] = static_cast<float>(2 * n);
      a.edge[slot] = edge;
      a.half_step[slot] = slope;
    }
    if (!found) throw "no line fits a decade";
  }
  // Zero and one share the last slot, where 2q + 1 is 1 and 257 (signed), or 3 and 513 (unsigned).
  const auto slot = static_cast<std::size_t>((bits_of(static_cast<float>(2 * shift + 1)) >> 23) & 7);
  a.power[slot] = static_cast<float>(2 * shift + 1);
  a.edge[slot] = 0.0F;
  a.half_step[slot] = 1.0F / static_cast<float>(2 * (top - shift));
  set_correction(a, 0, 0);
  set_correction(a, shift, 0);
  if (a.half_step[slot] * static_cast<float>(2 * (top - shift)) != 1.0F) throw "one is not exact";
}

template <int kCount>
constexpr ArithmeticMap arithmetic_map(const Magnitudes<kCount>& map, int shift) {
  ArithmeticMap a;
  const auto value = [&](int q) {
    return static_cast<double>(map.value[static_cast<std::size_t>(q - shift)]);
  };
  const int top = kCount - 1 + shift;  // q of 1.0, a power of two
  const double unit = 1 << kFractionBits;
  const auto fixed = [&](double rank) { return static_cast<float>(0x1p23 + rank * unit); };
  for (int k = 0; k < 8; ++k) {
    const auto i = static_cast<std::size_t>(k);
    const int n = (1 << k) << shift;
    if (n == top) {
      a.upper[i] = std::bit_cast<float>(0x7F800000);
      a.offset[i] = a.last[i] =
          std::bit_cast<float>(kRankBase + static_cast<std::int32_t>((top + 0.5) * unit));
      continue;
    }
    a.upper[i] = map.boundary(2 * n - 1 - shift);
    a.last[i] = fixed(2 * n - 1 + 0.5);
    if (k > 0) {
      const double step = (value(2 * n - 1) - value(n)) / (n - 1);
      a.slope[i] = static_cast<float>(unit / step);
      a.offset[i] = fixed(n + 0.5 - value(n) / step + kRankError / unit);
    } else {
      // The lowest class has two ranks (zero and the first magnitude, or the first two variances) and the
      // boundary between them. Its line keeps everything below the boundary at the lower rank.
      const double middle = (value(shift + shift) + value(shift + shift + 1)) / 2;
      a.slope[i] = static_cast<float>(unit * 0.98 / middle);
      a.offset[i] = fixed(shift + shift + 0.02 + kRankError / unit);
    }
  }
  for (std::uint32_t t = 0; t < 16; ++t) {
    const auto end = static_cast<std::int64_t>(t + kFirstTop + 1) << 24;
    const std::int64_t begin = t == 0 ? 0 : static_cast<std::int64_t>(t + kFirstTop) << 24;
    int k = 0;
    while (k < 7 && std::bit_cast<std::int32_t>(a.upper[static_cast<std::size_t>(k)]) < begin) ++k;
    if (k < 6 && std::bit_cast<std::int32_t>(a.upper[static_cast<std::size_t>(k) + 1]) < end)
      throw "two boundaries share their top bits";
    a.lower_class[t] = static_cast<std::uint8_t>(k);
  }
  fit_decoder(a, map, shift);
  if (a.lower_class[0] != 0) throw "small magnitudes must start at class 0";
  return a;
}

inline constexpr ArithmeticMap kSigned8Arithmetic = arithmetic_map(kSigned8, 0);
inline constexpr ArithmeticMap kUnsigned8Arithmetic = arithmetic_map(kUnsigned8, 1);

}  // namespace octavo::codecs
