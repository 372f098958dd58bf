// Counter-based random numbers: a result depends only on the argument, and every bit of it on every bit.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo_train {

// A bijection of 64 bits, the finalizer of SplitMix64. mix(key + n * kStep) for n = 1, 2, … is that
// generator.
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;

constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Returns the n-th number of a key in [0, 1), n = 1, 2, …
constexpr double share_of(std::uint64_t key, std::uint64_t n) {
  return static_cast<double>(mix(key + n * kStep) >> 11) * 0x1p-53;
}

}  // namespace octavo_train
