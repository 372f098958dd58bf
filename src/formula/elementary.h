// Logarithm and exponential in IEEE double from sums and products only, so the bits are equal on any host or
// device; those of a math library are not. Both are accurate to a few units in the last place and used once
// per step.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace octavo::formula {

// ln 2 is split in two parts. The first has so few bits that its product with an exponent is exact.
inline constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;

// REQUIRES: x >= 0.
OCTAVO_HD inline double natural_log(double x) {
  if (x == 0.0) return -std::numeric_limits<double>::infinity();
  int exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  exponent += static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFU) | 0x3FF0000000000000U);
  if (mantissa > 0x1.6a09e667f3bcdp0) {  // the square root of 2: the mantissa is near 1 afterwards
    mantissa *= 0.5;
    ++exponent;
  }
  // Computes 2 artanh(r). The series ends early because |r| < 0.172.
  const double r = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = r * r;
  double sum = 0.0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * kLn2High + (2.0 * r * sum + exponent * kLn2Low);
}

// REQUIRES: x <= 0.
OCTAVO_HD inline double exponential(double x) {
  if (!(x > -745.0)) return 0.0;
  int exponent = static_cast<int>(x * 0x1.71547652b82fep0 - 0.5);
  const double rest = (x - exponent * kLn2High) - exponent * kLn2Low;
  double sum = 1.0;
  for (int k = 15; k >= 1; --k) sum = 1.0 + rest / k * sum;
  for (; exponent < 0; ++exponent) sum *= 0.5;
  return sum;
}

}  // namespace octavo::formula
