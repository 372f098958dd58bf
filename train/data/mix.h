// Counter-based random numbers and normal noise: a result depends only on the arguments, so it is independent
// of a sample's place in a batch, of the device and of the number of processes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train {

// A bijection of 64 bits, the finalizer of SplitMix64. mix(key + n * kGoldenGamma) for n = 1, 2, … is that
// generator.
constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15;

constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Returns the n-th number of a key in [0, 1), n = 1, 2, …
constexpr double share_of(std::uint64_t key, std::uint64_t n) {
  return static_cast<double>(mix(key + n * kGoldenGamma) >> 11) * 0x1p-53;
}

// Returns the noise key of a clip (`draw`) in a step. `use` distinguishes several noises of one clip.
constexpr std::uint64_t noise_key(std::uint64_t seed, std::uint64_t step, std::uint64_t draw,
                                  std::uint64_t use) {
  return mix(mix(mix((seed ^ use) + kGoldenGamma) + step) + draw);
}

// Returns a number with mean 0 and standard deviation 1, at most 7 standard deviations from 0. Of 64 random
// bits, 48 are summed (their popcount), and the other 16 fill the steps between two sums. It uses no library
// function, so the bits are identical on every device.
constexpr float normal_noise(std::uint64_t key, std::uint64_t counter) {
  const std::uint64_t bits = mix(key + (counter + 1) * kGoldenGamma);
  std::uint64_t count = bits >> 16;
  count -= (count >> 1) & 0x5555555555555555;
  count = (count & 0x3333333333333333) + ((count >> 2) & 0x3333333333333333);
  count = (count + (count >> 4)) & 0x0F0F0F0F0F0F0F0F;
  count = (count * 0x0101010101010101) >> 56;
  constexpr std::int64_t kMiddle = (std::int64_t{24} << 16) + (1 << 15);
  const auto sum =
      static_cast<std::int32_t>(static_cast<std::int64_t>((count << 16) | (bits & 0xFFFF)) - kMiddle);
  constexpr double kDeviation = 3.4761089357690347;  // sqrt(12 + 1 / 12)
  return static_cast<float>(sum) * static_cast<float>(1.0 / (65536.0 * kDeviation));
}

}  // namespace octavo_train
