// Normal noise from counters: a number depends on the key and the counter alone, so it is the same wherever a
// sample lies in a batch, on any device and for any number of processes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/mix.h"

#include <cstdint>

namespace octavo::train {

// Of a clip in a pass. `use` tells noises of one clip apart.
constexpr std::uint64_t noise_key(std::uint64_t seed, std::uint64_t step, std::uint64_t draw,
                                  std::uint64_t use) {
  return mix(mix(mix((seed ^ use) + kStep) + step) + draw);
}

// With mean 0 and deviation 1, and at most 7 deviations away. Of 64 random bits, 48 are counted, and the rest
// fill the steps between the counts: no function of a library, and so the same bits on any device.
constexpr float normal_noise(std::uint64_t key, std::uint64_t counter) {
  const std::uint64_t bits = mix(key + (counter + 1) * kStep);
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

}  // namespace octavo::train
