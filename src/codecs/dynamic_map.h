// The dynamic maps: the 256 values of the 8-bit format and the 16 values of the 4-bit format, equal in bits
// to those of bitsandbytes and torchao, with the boundaries between neighbouring codes. All of it is computed
// at compile time.
//
// A map is a sequence of decades. Decade d has 2^d magnitudes, which are the midpoints of 2^d equal steps
// from 0.1 to 1, times a power of ten. If q is the rank of a magnitude (q = 2^d + j), the decade is the
// exponent of q, and j is the position in the decade.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace octavo::codecs {

inline constexpr float kPowersOfTen[8] = {1e-7F, 1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};

// Returns magnitude j of the 2^d in decade d, scaled by `power`. bitsandbytes and torchao compute it with a
// float linspace that works from both ends with fused operations. Products and sums here are exact in double,
// so each cast rounds exactly as that linspace does.
constexpr float decade_value(int d, int j, float power) {
  const int n = 1 << d;
  const double slope = static_cast<double>(1.0F - 0.1F) / n;
  const auto edge = [&](int i) {
    return i < (n + 1) / 2 ? static_cast<float>(slope * i + static_cast<double>(0.1F))
                           : static_cast<float>(1.0 - slope * (n - i));
  };
  return power * ((edge(j) + edge(j + 1)) / 2.0F);
}

// The magnitudes of a map in ascending order: magnitude[q] for q = 0 … count - 1.
template <int kCount>
struct Magnitudes {
  std::array<float, kCount> value{};

  // Returns the largest float that still belongs to q when the choice is between q and q + 1: the exact
  // midpoint, rounded down. So x > boundary(q) selects q + 1, and a tie goes to the smaller magnitude.
  [[nodiscard]] constexpr float boundary(int q) const {
    const double middle = (static_cast<double>(value[static_cast<std::size_t>(q)]) +
                           static_cast<double>(value[static_cast<std::size_t>(q) + 1])) /
                          2.0;
    const auto near = static_cast<float>(middle);
    return static_cast<double>(near) <= middle ? near
                                               : std::bit_cast<float>(std::bit_cast<std::uint32_t>(near) - 1);
  }
};

// Signed maps have q = |code - zero|. q = 0 is 0, decades 0 … kDecades - 1 follow, and the last q is 1
// (positive only).
template <int kDecades>
constexpr auto signed_magnitudes() {
  Magnitudes<(1 << kDecades) + 1> m;
  for (int d = 0; d < kDecades; ++d) {
    for (int j = 0; j < (1 << d); ++j) {
      m.value[static_cast<std::size_t>((1 << d) + j)] = decade_value(d, j, kPowersOfTen[8 - kDecades + d]);
    }
  }
  m.value[1 << kDecades] = 1.0F;
  return m;
}

// The unsigned 8-bit map is indexed by code = q - 1: 0, decades 1 … 7, and 1.
constexpr auto unsigned_magnitudes() {
  Magnitudes<256> m;
  for (int d = 1; d < 8; ++d) {
    for (int j = 0; j < (1 << d); ++j) {
      m.value[static_cast<std::size_t>((1 << d) + j - 1)] = decade_value(d, j, kPowersOfTen[d]);
    }
  }
  m.value[255] = 1.0F;
  return m;
}

inline constexpr auto kSigned8 = signed_magnitudes<7>();
inline constexpr auto kUnsigned8 = unsigned_magnitudes();
inline constexpr auto kSigned4 = signed_magnitudes<3>();

// Finds the nearest magnitude by one look-up. Floats in [2^kLowExponent, 2) fall into buckets by exponent and
// top mantissa bits. The buckets are so narrow that each contains at most one boundary. An entry is (q <<
// kLowBits) + (2^kLowBits - 1 - boundary's low bits): adding the low bits of x carries into q exactly if x is
// above the boundary.
template <int kMantissaBits, int kLowExponent>
struct Buckets {
  static constexpr int kLowBits = 23 - kMantissaBits;
  static constexpr std::uint32_t kLowMask = (1U << kLowBits) - 1;
  static constexpr std::uint32_t kFirst = static_cast<std::uint32_t>(127 + kLowExponent) << kMantissaBits;
  static constexpr std::uint32_t kCount = (static_cast<std::uint32_t>(-kLowExponent) << kMantissaBits) + 1;
  std::array<std::uint32_t, kCount> entry{};

  template <int kSize>
  explicit constexpr Buckets(const Magnitudes<kSize>& map) {
    int q = 0;
    for (std::uint32_t b = 0; b < kCount; ++b) {
      const std::uint32_t first = (b + kFirst) << kLowBits;
      const auto bits_of = [&](int i) { return std::bit_cast<std::uint32_t>(map.boundary(i)); };
      while (q + 1 < kSize && bits_of(q) < first) ++q;
      std::uint32_t e = static_cast<std::uint32_t>(q) << kLowBits;
      if (q + 1 < kSize && bits_of(q) <= first + kLowMask) {
        // A second boundary in the bucket would make the table wrong. The throw makes this expression not
        // constant, so it does not compile.
        if (q + 2 < kSize && bits_of(q + 1) <= first + kLowMask) throw "bucket holds two boundaries";
        e += kLowMask - (bits_of(q) & kLowMask);
      }
      entry[b] = e;
    }
  }

  // Returns the rank of the nearest magnitude. Values of 1 and more have the rank of 1, and values below the
  // first bucket that of zero.
  [[nodiscard]] constexpr std::int32_t rank(std::uint32_t magnitude_bits) const {
    constexpr std::uint32_t kOne = 0x3F800000U;
    const std::uint32_t clamped = magnitude_bits < kOne ? magnitude_bits : kOne;
    const std::uint32_t bucket = clamped >> kLowBits;
    if (bucket < kFirst) return 0;
    return static_cast<std::int32_t>((entry[bucket - kFirst] + (clamped & kLowMask)) >> kLowBits);
  }
};

inline constexpr Buckets<6, -22> kSigned8Buckets(kSigned8);
inline constexpr Buckets<7, -23> kUnsigned8Buckets(kUnsigned8);
inline constexpr Buckets<3, -9> kSigned4Buckets(kSigned4);

}  // namespace octavo::codecs
