// Packs codes of fewer than eight bits from bytes, and unpacks them. The packed codes are a stream of bits:
// the first code is in the highest bits of the first byte, and unused bits of the last byte are zero. (The
// functions are templates over the lane: each instruction set compiles its own copy, and the compiler
// vectorizes it.)
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo::cpu {

template <class L>
inline void unpack_nibbles(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < (n + 1) / 2; ++i) {
    const auto pair = static_cast<std::uint16_t>(from[i] >> 4 | (from[i] & 15) << 8);
    std::memcpy(to + 2 * i, &pair, 2);
  }
}

template <class L>
inline void pack_nibbles(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n / 2; ++i) {
    std::uint16_t pair;
    std::memcpy(&pair, from + 2 * i, 2);
    to[i] = static_cast<std::uint8_t>(pair << 4 | pair >> 8);
  }
  if ((n & 1) != 0) to[n / 2] = static_cast<std::uint8_t>(from[n - 1] << 4);
}

// Unpacks codes of any width: eight codes take kBits bytes. `to` has space for n codes and seven more.
template <class L, int kBits>
inline void unpack_codes(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  if constexpr (kBits == 4) {
    unpack_nibbles<L>(from, n, to);
  } else {
    for (std::int64_t at = 0; at < n; at += 8, from += kBits) {
      const std::int64_t count = n - at < 8 ? n - at : 8;
      std::uint64_t word = 0;
      for (std::int64_t i = 0; i < (count * kBits + 7) / 8; ++i)
        word |= static_cast<std::uint64_t>(from[i]) << (8 * (kBits - 1 - i));
      for (int i = 0; i < 8; ++i)
        to[at + i] = static_cast<std::uint8_t>(word >> (kBits * (7 - i)) & ((1U << kBits) - 1));
    }
  }
}

template <class L, int kBits>
inline void pack_codes(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  if constexpr (kBits == 4) {
    pack_nibbles<L>(from, n, to);
  } else {
    for (std::int64_t at = 0; at < n; at += 8, to += kBits) {
      const std::int64_t count = n - at < 8 ? n - at : 8;
      std::uint64_t word = 0;
      for (std::int64_t i = 0; i < count; ++i)
        word |= static_cast<std::uint64_t>(from[at + i]) << (kBits * (7 - i));
      for (std::int64_t i = 0; i < (count * kBits + 7) / 8; ++i)
        to[i] = static_cast<std::uint8_t>(word >> (8 * (kBits - 1 - i)));
    }
  }
}

}  // namespace octavo::cpu
