// Randomness without state: bits that depend only on (seed, step, parameter id, stream, element
// index). So the noise is the same on any device, for any number of threads or shards, and after a resume.
// SPDX-License-Identifier: MIT
#pragma once

#include "lane/scalar.h"

#include <cstdint>

namespace octavo::formula {

struct RoundKey {
  std::uint32_t low, high;
};

OCTAVO_HD inline std::uint64_t mix64(std::uint64_t x) {  // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

// Returns the key that all tensors of a step share.
OCTAVO_HD inline std::uint64_t round_base(std::uint64_t seed, std::uint64_t step) {
  return mix64(mix64(seed + kGolden) ^ (step + kGolden));
}

// `stream` distinguishes a tensor's uses: 0 is its weights, 1 + slot its moments.
OCTAVO_HD inline RoundKey round_key(std::uint64_t base, std::uint64_t id, std::uint32_t stream) {
  const std::uint64_t x = mix64(base ^ (id * kGolden + stream));
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}
OCTAVO_HD inline RoundKey round_key(std::uint64_t seed, std::uint64_t step, std::uint64_t id,
                                    std::uint32_t stream) {
  return round_key(round_base(seed, step), id, stream);
}

// Returns the part of the hash that 2^32 neighbouring elements share.
OCTAVO_HD inline std::uint32_t high_word(RoundKey key, std::uint32_t index_high) {
  return static_cast<std::uint32_t>(mix64(key.high ^ (static_cast<std::uint64_t>(index_high) << 32)));
}

// Returns thirty-two uniform bits of a counter whose low word is `at`, by a multiply-xorshift hash that is
// keyed before each multiply. `second` is the high_word of the counter.
template <class I>
OCTAVO_HD inline I mix32(I at, I key_low, I second) {
  I x = at ^ key_low;
  x = (x ^ shr<16>(x)) * I::of(0x21F0AAADU);
  x = x ^ shr<15>(x) ^ second;
  x = x * I::of(0x735A2D97U);
  return x ^ shr<15>(x);
}

// Returns thirty-two uniform bits for elements index + lane.
template <class I>
OCTAVO_HD inline I random32(RoundKey key, std::uint64_t index, I lane) {
  const auto low = static_cast<std::uint32_t>(index);
  const auto high = static_cast<std::uint32_t>(index >> 32);
  const I at = I::of(low) + lane;
  // A vector may cross a multiple of 2^32: lanes that wrapped (at < low, unsigned) use the next high word.
  const I flip = I::of(0x80000000U);
  const I second =
      select((at ^ flip) < (I::of(low) ^ flip), I::of(high_word(key, high + 1)), I::of(high_word(key, high)));
  return mix32(at, I::of(key.low), second);
}
// Returns sixteen uniform bits.
template <class I>
OCTAVO_HD inline I random16(RoundKey key, std::uint64_t index, I lane) {
  return shr<16>(random32(key, index, lane));
}

// Codes in blocks get sixteen bits per element and slot. Two neighbouring slots share a hash, because it
// takes as long as encoding: even slots have its upper half, odd slots its lower half.
OCTAVO_HD constexpr std::uint32_t code_stream(int slot) {
  return 1U + (static_cast<std::uint32_t>(slot) & ~1U);
}
template <int kSlot, class I>
OCTAVO_HD inline I code_half(I random) {
  if constexpr (kSlot % 2 == 0) return shr<16>(random);
  return random & I(0xFFFF);
}

}  // namespace octavo::formula
