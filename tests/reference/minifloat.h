// Small floating-point formats by their definition: sign, exponent, mantissa. Rounding is arithmetic on real
// values, without bit tricks. The library's fast conversions are compared with these.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Minifloat {
  int exponent_bits;
  int mantissa_bits;
  double max_finite;
  bool has_infinity;  // false: E4M3FN, whose top exponent has numbers and one NaN

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] int magnitude_bits() const { return exponent_bits + mantissa_bits; }
  [[nodiscard]] std::uint32_t infinity() const { return ((1u << exponent_bits) - 1u) << mantissa_bits; }

  // Returns the value of a code; NaN codes give NaN.
  [[nodiscard]] double value(std::uint32_t code) const {
    const std::uint32_t magnitude = code & ((1u << magnitude_bits()) - 1u);
    const double sign = (code >> magnitude_bits()) & 1u ? -1.0 : 1.0;
    const auto exponent = static_cast<int>(magnitude >> mantissa_bits);
    const auto mantissa = static_cast<double>(magnitude & ((1u << mantissa_bits) - 1u));
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    if (has_infinity && magnitude >= infinity()) {
      return magnitude == infinity() ? sign * kInfinity : kNan;
    }
    if (!has_infinity && magnitude == (1u << magnitude_bits()) - 1u) return kNan;
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias());
    return sign * std::ldexp(1.0 + fraction, exponent - bias());
  }

  // Returns the magnitude code nearest to |x|, ties to the even code. Beyond the largest finite value it is
  // infinity if the format has one and `saturate` is off, otherwise the largest finite code. x must not be
  // NaN.
  [[nodiscard]] std::uint32_t nearest_magnitude(double x, bool saturate) const {
    const double magnitude = std::fabs(x);
    if (std::isinf(magnitude)) return saturate ? code_of(max_finite) : infinity();
    int exponent = 1 - bias();
    if (magnitude != 0.0) exponent = std::max(exponent, std::ilogb(magnitude));
    const double quantum = std::ldexp(1.0, exponent - mantissa_bits);
    const double rounded =
        std::nearbyint(magnitude / quantum) * quantum;  // both are exact except for the rounding
    if (rounded > max_finite) return saturate ? code_of(max_finite) : infinity();
    return code_of(rounded);
  }

  // Returns the code of a value that the format represents exactly.
  [[nodiscard]] std::uint32_t code_of(double magnitude) const {
    const double smallest_normal = std::ldexp(1.0, 1 - bias());
    if (magnitude < smallest_normal) {
      return static_cast<std::uint32_t>(std::ldexp(magnitude, bias() - 1 + mantissa_bits));
    }
    const int exponent = std::ilogb(magnitude);
    const double fraction = std::ldexp(magnitude, -exponent) - 1.0;
    return (static_cast<std::uint32_t>(exponent + bias()) << mantissa_bits) +
           static_cast<std::uint32_t>(std::ldexp(fraction, mantissa_bits));
  }
};

inline constexpr Minifloat kE4M3{4, 3, 448.0, false};
inline constexpr Minifloat kE5M2{5, 2, 57344.0, true};
inline constexpr Minifloat kFp16{5, 10, 65504.0, true};
inline constexpr Minifloat kBf16{8, 7, 0x1.fep127, true};

}  // namespace reference
