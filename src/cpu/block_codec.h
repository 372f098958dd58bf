// Encoding and decoding runs of elements: nibbles to bytes and back, blocks of codes, and the plain formats.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "cpu/tile_io.h"
#include "formula/blockwise.h"

#include <cstring>

namespace octavo::cpu {

// Two codes to a byte, the even element in the high nibble. Eight bytes of codes a turn, in one 64-bit word.
inline void unpack_nibbles(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  const std::int64_t bytes = (n + 1) / 2;
  for (std::int64_t i = 0; i < bytes; ++i) {
    to[2 * i] = from[i] >> 4;
    to[2 * i + 1] = from[i] & 15;
  }
}
// REQUIRES: to an odd n belongs a readable from[n]; its nibble is written as zero.
inline void pack_nibbles(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n / 2; ++i) to[i] = static_cast<std::uint8_t>(from[2 * i] << 4 | from[2 * i + 1]);
  if ((n & 1) != 0) to[n / 2] = static_cast<std::uint8_t>(from[n - 1] << 4);
}

// Where a run's codes can be read as bytes: in place, or in scratch (nibbles; a tail that a vector would overrun).
template <class L, class Codec>
inline const std::uint8_t* codes_in(const void* codes, std::int64_t at, std::int64_t n, std::uint8_t* scratch) {
  const auto* from = static_cast<const std::uint8_t*>(codes);
  if constexpr (Codec::kBits == 4) {
    unpack_nibbles(from + at / 2, n, scratch);
    return scratch;
  } else {
    if (n % L::kWidth == 0) return from + at;
    std::memcpy(scratch, from + at, static_cast<std::size_t>(n));
    return scratch;
  }
}
// Where they may be written as bytes, and the end of it.
template <class L, class Codec>
inline std::uint8_t* codes_out(void* codes, std::int64_t at, std::int64_t n, std::uint8_t* scratch) {
  return Codec::kBits == 8 && n % L::kWidth == 0 ? static_cast<std::uint8_t*>(codes) + at : scratch;
}
template <class Codec>
inline void finish_codes(const std::uint8_t* written, void* codes, std::int64_t at, std::int64_t n) {
  auto* to = static_cast<std::uint8_t*>(codes);
  if constexpr (Codec::kBits == 4) {
    pack_nibbles(written, n, to + at / 2);
  } else if (written != to + at) {
    std::memcpy(to + at, written, static_cast<std::size_t>(n));
  }
}

// Codes of n elements whose multiplier `inverse(i)` gives; both arrays are padded to whole vectors.
template <class L, class Codec, Moment kMoment, class Inverse>
inline void encode_codes(const float* values, std::int64_t n, Inverse&& inverse, std::uint8_t* codes) {
  using F = typename L::F;
  using I = typename L::I;
  constexpr std::int64_t kW = L::kWidth;
  constexpr std::int64_t kRun = L::kSimd ? 4 * kW : kW;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    I suspect(-1);
    const std::int64_t end = begin + kRun < n ? begin + kRun : n;
    for (std::int64_t i = begin; i < end; i += kW) {
      const F raw = L::load(values + i);
      L::store_u8(Codec::template encode<kMoment, L>(raw * inverse(i), raw, suspect), codes + i);
    }
    if constexpr (L::kSimd && Codec::kSuspects) {
      if (L::reduce_min_u(suspect) < static_cast<std::uint32_t>(Codec::kSuspectBelow)) [[unlikely]] {
        alignas(64) float factors[kW];
        for (std::int64_t i = begin; i < end; ++i) {
          if ((i - begin) % kW == 0) L::store(inverse(i), factors);
          scalar::I32 none;
          const scalar::F32 raw(values[i]);
          const scalar::F32 x = raw * scalar::F32(factors[(i - begin) % kW]);
          scalar::Lane::store_u8(Codec::template encode<kMoment, scalar::Lane>(x, raw, none), codes + i);
        }
      }
    }
  }
}

// One block: its scale from the bits of its maximum, then its codes.
template <class L, class Codec, Moment kMoment>
inline float encode_block(const float* values, std::int64_t n, std::uint32_t max_bits, std::uint8_t* codes) {
  using F = typename L::F;
  const formula::BlockScale scale = formula::block_scale(max_bits, Codec::kLargest);
  if (!scale.finite) [[unlikely]] {
    std::memset(codes, 0, static_cast<std::size_t>(n));
  } else {
    const F inverse(scale.inverse);
    encode_codes<L, Codec, kMoment>(values, n, [&](std::int64_t) { return inverse; }, codes);
  }
  return scale.scale;
}

// Rank-1: every element has its own scale, non-finite where all its axes are; such an element gets code 0.
template <class L, class Codec, Moment kMoment>
inline void encode_scaled(const float* values, const float* scales, std::int64_t n, std::uint8_t* codes) {
  using F = typename L::F;
  using I = typename L::I;
  encode_codes<L, Codec, kMoment>(
      values, n,
      [&](std::int64_t i) {
        const F s = L::load(scales + i);
        const F inverse = select(s > F(0.0F), F(1.0F) / s, F(0.0F));
        return select(bits(s) < I(formula::kInf32), inverse, F(0.0F));
      },
      codes);
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(scales[i] < std::bit_cast<float>(formula::kInf32))) codes[i] = 0;
  }
}

template <class L>
inline std::uint32_t magnitude_max(const float* values, std::int64_t n) {
  using I = typename L::I;
  constexpr std::int64_t kW = L::kWidth;
  I max_bits(0);
  std::int64_t i = 0;
  for (; i + kW <= n; i += kW) max_bits = max(max_bits, bits(L::load(values + i)) & I(0x7FFFFFFF));
  std::uint32_t result = L::reduce_max_u31(max_bits);
  for (; i < n; ++i) {
    const std::uint32_t b = std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFU;
    if (b > result) result = b;
  }
  return result;
}

// fp32 -> format, for the converters: whole blocks, the last may be partial.
template <class L, class Codec, Moment kMoment>
void encode_run(const float* values, std::int64_t count, std::int64_t block, void* codes, float* scales, Scratch* scratch) {
  if constexpr (Codec::kBlocked) {
    for (std::int64_t at = 0; at < count; at += block, ++scales) {
      const std::int64_t n = count - at < block ? count - at : block;
      std::memset(scratch->param + n, 0, kPad * sizeof(float));
      std::memcpy(scratch->param, values + at, static_cast<std::size_t>(n) * sizeof(float));
      std::uint8_t* out = codes_out<L, Codec>(codes, at, n, scratch->codes[0]);
      *scales = encode_block<L, Codec, kMoment>(scratch->param, n, magnitude_max<L>(values + at, n), out);
      finish_codes<Codec>(out, codes, at, n);
    }
  } else {
    for (std::int64_t at = 0; at < count; at += kMaxTile) {
      const std::int64_t n = count - at < kMaxTile ? count - at : kMaxTile;
      using F = typename L::F;
      using I = typename L::I;
      widen<L>(values + at, n, scratch->param, [](const float* p) { return formula::canonical(L::load(p)); });
      if constexpr (Codec::kBits == 32) {
        store_values<L>(scratch->param, n, codes, DType::f32, at);
      } else {
        narrow<L>(scratch->param, n, static_cast<std::uint16_t*>(codes) + at, [](F x, std::uint16_t* p, std::int64_t) {
          I half = formula::float_to_bf16(x);
          if (kMoment == Moment::second) half = select(x > F(0.0F), max(half, I(1)), half);
          L::store_u16(half, p);
        });
      }
    }
  }
}

// format -> fp32.
template <class L, class Codec, Moment kMoment>
void decode_run(const void* codes, const float* scales, std::int64_t count, std::int64_t block, float* values, Scratch* scratch) {
  using F = typename L::F;
  if constexpr (Codec::kBlocked) {
    for (std::int64_t at = 0; at < count; at += block, ++scales) {
      const std::int64_t n = count - at < block ? count - at : block;
      const std::uint8_t* in = codes_in<L, Codec>(codes, at, n, scratch->codes[0]);
      widen<L>(in, n, scratch->param, [&](const std::uint8_t* p) {
        return formula::canonical(Codec::template decode<kMoment, L>(L::load_u8(p)) * F(*scales));
      });
      std::memcpy(values + at, scratch->param, static_cast<std::size_t>(n) * sizeof(float));
    }
  } else {
    for (std::int64_t at = 0; at < count; at += kMaxTile) {
      const std::int64_t n = count - at < kMaxTile ? count - at : kMaxTile;
      load_values<L>(codes, Codec::kBits == 32 ? DType::f32 : DType::bf16, at, n, scratch->param);
      narrow<L>(scratch->param, n, values + at, [](F x, float* p, std::int64_t) { L::store(formula::canonical(x), p); });
    }
  }
}

}  // namespace octavo::cpu
