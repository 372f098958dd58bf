// Encoding and decoding runs of elements: blocks of codes, codes with scales of their own, and the plain
// formats.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/tile_io.h"
#include "formula/blockwise.h"

#include <cstring>

namespace octavo::cpu {

// The map's values of n codes: by byte look-ups where the lane has them, else by arithmetic, else by table.
// `bytes` has room for n codes and a vector more.
template <class L, class Codec, Moment kMoment>
inline void decode_codes(const std::uint8_t* codes, std::int64_t n, float* values, std::uint8_t* bytes) {
  static constexpr auto kValues = Codec::template values<kMoment>();
  if constexpr (Codec::kBits < 8) {
    unpack_codes<L, Codec::kBits>(codes, n, bytes);
    codes = bytes;
  }
  std::int64_t i = 0;
  if constexpr (L::kSimd) {
    if constexpr (L::template kByteLookup<kValues.size()>) {
      static constexpr typename L::template Planes<kValues.size()> kPlanes(kValues);
      for (; i + 4 * L::kWidth <= n; i += 4 * L::kWidth) L::lookup_bytes4(kPlanes, codes + i, values + i);
    } else if constexpr (requires(typename L::I code) { Codec::template decode<kMoment, L>(code); }) {
      for (; i + L::kWidth <= n; i += L::kWidth)
        L::store(Codec::template decode<kMoment, L>(L::load_u8(codes + i)), values + i);
    }
  }
  for (; i < n; ++i) values[i] = kValues[codes[i]];
}

// The first byte of the codes from element `at` on. `at` must be the first element of a byte.
template <class Codec>
inline const std::uint8_t* codes_in(const void* codes, std::int64_t at) {
  return static_cast<const std::uint8_t*>(codes) + at * Codec::kBits / 8;
}
// Where the codes of a run can be written as bytes: in place, or in scratch memory (for packed codes, and
// for a tail that a vector would overrun).
template <class L, class Codec>
inline std::uint8_t* codes_out(void* codes, std::int64_t at, std::int64_t n, std::uint8_t* scratch) {
  return Codec::kBits == 8 && n % L::kWidth == 0 ? static_cast<std::uint8_t*>(codes) + at : scratch;
}
template <class L, class Codec>
inline void finish_codes(const std::uint8_t* written, void* codes, std::int64_t at, std::int64_t n) {
  auto* to = static_cast<std::uint8_t*>(codes);
  if constexpr (Codec::kBits < 8) {
    pack_codes<L, Codec::kBits>(written, n, to + at * Codec::kBits / 8);
  } else if (written != to + at) {
    std::memcpy(to + at, written, static_cast<std::size_t>(n));
  }
}

// Codes of n elements by the tables, one at a time: for elements that a SIMD encoder leaves undecided.
template <class L, class Codec, Moment kMoment>
[[gnu::noinline, gnu::cold]] void encode_by_table(const float* values, const float* factors, std::int64_t n,
                                                  std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) {
    scalar::I32 none;
    const scalar::F32 raw(values[i]);
    const scalar::I32 code =
        Codec::template encode<kMoment, scalar::Lane>(raw * scalar::F32(factors[i]), raw, none);
    scalar::Lane::store_u8(code + scalar::I32(Codec::code_bias(kMoment)), codes + i);
  }
}

// Codes of n elements, `inverse(i)` giving the multiplier of the vector at i; values and codes have room to
// the next whole vector.
template <class L, class Codec, Moment kMoment, class Inverse>
inline void encode_codes(const float* values, std::int64_t n, Inverse&& inverse, std::uint8_t* codes) {
  using F = typename L::F;
  using I = typename L::I;
  constexpr std::int64_t kW = L::kWidth;
  constexpr std::int16_t kBias = Codec::code_bias(kMoment);
  const auto encode = [&](std::int64_t i, I& suspect) {
    const F raw = L::load(values + i);
    return Codec::template encode<kMoment, L>(raw * inverse(i), raw, suspect);
  };
  const auto settle = [&](std::int64_t i, std::int64_t count, I suspect) {
    if constexpr (L::kSimd && Codec::kSuspects) {
      if (L::reduce_min_u(suspect) >= Codec::kSuspectBelow) [[likely]]
        return;
      alignas(64) float factors[4 * kW];
      for (std::int64_t k = 0; k < count; k += kW) L::store(inverse(i + k), factors + k);
      encode_by_table<L, Codec, kMoment>(values + i, factors, count, codes + i);
    }
  };
  std::int64_t i = 0;
  if constexpr (L::kSimd) {
    for (; i + 4 * kW <= n; i += 4 * kW) {
      I suspect(-1);
      const I a = encode(i, suspect);
      const I b = encode(i + kW, suspect);
      const I c = encode(i + 2 * kW, suspect);
      const I d = encode(i + 3 * kW, suspect);
      L::store_codes4(a, b, c, d, kBias, codes + i);
      settle(i, 4 * kW, suspect);
    }
  }
  for (; i < n; i += kW) {
    I suspect(-1);
    L::store_u8(encode(i, suspect) + I(kBias), codes + i);
    settle(i, kW, suspect);
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
    encode_codes<L, Codec, kMoment>(
        values, n, [&](std::int64_t) { return inverse; }, codes);
  }
  return scale.scale;
}

// Axis scales: every element has its own; it is non-finite where all axes are, and the code is then 0.
template <class L, class Codec, Moment kMoment>
inline void encode_scaled(const float* values, const float* scales, std::int64_t n, std::uint8_t* codes) {
  encode_codes<L, Codec, kMoment>(
      values, n, [&](std::int64_t i) { return formula::axis_inverse(L::load(scales + i)); }, codes);
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

// Copies n <= kMaxTile moments to `to`, which has room to the next whole vector: no -0 in a variance.
template <class L, Moment kMoment>
inline void copy_padded(const float* values, std::int64_t n, float* to) {
  std::memset(to + n, 0, kPad * sizeof(float));
  for (std::int64_t i = 0; i < n; ++i) to[i] = kMoment == Moment::second ? values[i] + 0.0F : values[i];
}

// f(first element, count) for each stretch of at most `most` elements.
template <class L, class Fn>
inline void for_stretches(std::int64_t count, std::int64_t most, Fn&& f) {
  for (std::int64_t at = 0; at < count; at += most) f(at, count - at < most ? count - at : most);
}

// fp32 -> format, for the converters: whole blocks, the last may be partial.
template <class L, class Codec, Moment kMoment>
void encode_run(const float* values, std::int64_t count, std::int64_t block, void* codes, float* scales,
                Scratch* scratch) {
  constexpr bool kPerBlock = Codec::kScale == ScalePolicy::block;
  for_stretches<L>(count, kPerBlock ? block : kMaxTile, [&](std::int64_t at, std::int64_t n) {
    using F = typename L::F;
    if constexpr (Codec::kScale != ScalePolicy::none) {
      copy_padded<L, kMoment>(values + at, n, scratch->param);
      std::uint8_t* out = codes_out<L, Codec>(codes, at, n, scratch->codes[0]);
      if constexpr (kPerBlock) {
        *scales++ = encode_block<L, Codec, kMoment>(scratch->param, n, magnitude_max<L>(values + at, n), out);
      } else {
        encode_scaled<L, Codec, kMoment>(scratch->param, scales + at, n, out);
      }
      finish_codes<L, Codec>(out, codes, at, n);
    } else {
      widen<L>(values + at, n, scratch->param, [](const float* p) { return formula::canonical(L::load(p)); });
      if constexpr (Codec::kBits == 32) {
        store_values<L>(scratch->param, n, codes, DType::f32, at);
      } else {
        narrow<L>(
            scratch->param, n, static_cast<std::uint16_t*>(codes) + at,
            [](F x, std::uint16_t* p, std::int64_t) { L::store_u16(Codec::template encode<kMoment>(x), p); });
      }
    }
  });
}

// format -> fp32.
template <class L, class Codec, Moment kMoment>
void decode_run(const void* codes, const float* scales, std::int64_t count, std::int64_t block, float* values,
                Scratch* scratch) {
  constexpr bool kPerBlock = Codec::kScale == ScalePolicy::block;
  for_stretches<L>(count, kPerBlock ? block : kMaxTile, [&](std::int64_t at, std::int64_t n) {
    using F = typename L::F;
    float* const from = scratch->param;
    if constexpr (Codec::kScale == ScalePolicy::none) {
      load_values<L>(codes, Codec::kBits == 32 ? DType::f32 : DType::bf16, at, n, from);
    } else {
      decode_codes<L, Codec, kMoment>(codes_in<Codec>(codes, at), n, from, scratch->codes[0]);
    }
    const float* const scale = kPerBlock ? scales++ : scales + at;
    narrow<L>(from, n, values + at, [&](F x, float* p, std::int64_t i) {
      if constexpr (kPerBlock) x = x * F(*scale);
      if constexpr (Codec::kScale == ScalePolicy::axis) x = x * L::load(scale + i);
      L::store(formula::canonical(x), p);
    });
  });
}

}  // namespace octavo::cpu
