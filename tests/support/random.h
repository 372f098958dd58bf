// Random numbers for tests, made from integers only: they are the same on every machine and standard library,
// so golden files can contain their results.
// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // splitmix64
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint32_t bits32() { return static_cast<std::uint32_t>(bits() >> 32); }
  std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : bits() % limit; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)

  // Approximates a normal distribution by the sum of four 16-bit uniforms, variance 1.
  float gaussian() {
    const std::uint64_t z = bits();
    const auto sum =
        static_cast<double>((z & 0xFFFF) + ((z >> 16) & 0xFFFF) + ((z >> 32) & 0xFFFF) + (z >> 48));
    return static_cast<float>((sum - 131070.0) * (1.7320508075688772 / 65536.0));
  }

 private:
  std::uint64_t state_;
};

// Returns Gaussian values whose magnitudes spread over `spread` binary orders, with some exact zeros.
inline std::vector<float> spread_values(std::int64_t count, std::uint64_t seed, int spread = 12) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const auto exponent = -static_cast<int>(random.below(static_cast<std::uint64_t>(spread) + 1));
    value = std::ldexp(random.gaussian(), exponent);
    if (random.chance(37)) value = 0.0f;
  }
  return values;
}

// Returns any bit pattern whose value is finite: every exponent, denormals too.
inline std::vector<float> any_finite_values(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    do {
      value = std::bit_cast<float>(random.bits32());
    } while (!std::isfinite(value));
  }
  return values;
}

inline void make_second_moment(std::vector<float>& values) {
  for (float& value : values) value = std::fabs(value);
}

}  // namespace test
