// Encodes and decodes runs of elements: blocks of codes, codes with one scale per element, and the plain
// formats.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "cpu/pack.h"
#include "cpu/tile_io.h"
#include "formula/blockwise.h"

#include <algorithm>
#include <cstring>

namespace octavo::cpu {

// Writes the map's values of n codes: by byte look-ups if the lane has them, otherwise by arithmetic or by
// table. `bytes` has space for n codes and one more vector.
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
    } else if constexpr (requires { Codec::template decode4<L>(codes, values); }) {
      if constexpr (L::kHalves) {
        for (; i + 4 * L::kWidth <= n; i += 4 * L::kWidth) {
          if (L::any_byte_above(codes + i, Codec::kLastNumber)) [[unlikely]]
            break;
          Codec::template decode4<L>(codes + i, values + i);
        }
      }
    }
    if constexpr (requires(typename L::I code) { Codec::template decode<kMoment, L>(code); }) {
      for (; i + L::kWidth <= n; i += L::kWidth)
        L::store(Codec::template decode<kMoment, L>(L::load_u8(codes + i)), values + i);
    }
  }
  for (; i < n; ++i) values[i] = kValues[codes[i]];
}

// Returns the address of the codes from element `at` on. `at` must be the first element of a byte.
template <class Codec>
inline const std::uint8_t* codes_in(const void* codes, std::int64_t at) {
  return static_cast<const std::uint8_t*>(codes) + at * Codec::kBits / 8;
}
// Returns where the codes of a run can be written as bytes: in place, or in scratch memory (for packed codes,
// and for a tail that a vector would overrun).
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

// Returns the code of one element by table. The template parameter L keeps the code of instruction sets
// apart.
template <class L, class Codec, Moment kMoment>
inline std::uint8_t encode_one(float value, float inverse) {
  std::uint8_t code;
  scalar::I32 none;
  const scalar::F32 raw(value);
  const scalar::I32 found =
      Codec::template encode<kMoment, scalar::Lane>(raw * scalar::F32(inverse), raw, none);
  scalar::Lane::store_u8(found + scalar::I32(Codec::code_bias(kMoment)), &code);
  return code;
}

// Encodes by table those elements of four vectors that the SIMD encoder reported as suspect.
template <class L, class Codec, Moment kMoment, class Inverse>
[[gnu::noinline, gnu::cold]] void encode_suspects(const float* values, std::int64_t at,
                                                  const Inverse& inverse, const typename L::I (&suspect)[4],
                                                  std::uint8_t* codes) {
  alignas(64) float factors[L::kWidth];
  alignas(64) float distances[L::kWidth];
  for (int k = 0; k < 4; ++k) {
    if (!L::any_below_u(suspect[k], Codec::kSuspectBelow)) continue;
    L::store(inverse(at + k * L::kWidth), factors);
    L::store(from_bits(suspect[k]), distances);
    for (int i = 0; i < L::kWidth; ++i) {
      if (std::bit_cast<std::uint32_t>(distances[i]) >= Codec::kSuspectBelow) continue;
      const int e = k * L::kWidth + i;
      codes[e] = encode_one<L, Codec, kMoment>(values[at + e], factors[i]);
    }
  }
}

// Decodes the next tile's codes during the encoding of this tile's values. A load of the code, a load from
// the table and a store leave the SIMD units free for the encoder. Decoding stays four vectors behind
// encoding, so that a value is encoded before it is replaced.
template <class L, class Codec, Moment kMoment>
struct DecodeBeside {
  const std::uint8_t* codes;  // the next tile's codes
  float* values;              // this tile's values, with space for four vectors after them
  std::int64_t count;         // the number of both
  static constexpr std::int64_t kLag = 4 * L::kWidth;

  // True if that is faster than SIMD: if 256 values neither fit into registers nor follow from the bits.
  static constexpr bool kWorthwhile = L::kSimd && Codec::kTakesBeside && L::kTableBeside;

  // The work to do during the encoding of the four vectors from element `at` on.
  struct Work {
    const std::uint8_t* from;
    float* to;
    void operator()(int k) const { vector(from + k * L::kWidth, to + k * L::kWidth); }
  };
  [[nodiscard]] Work beside(std::int64_t at) const {
    const std::int64_t behind =
        at - kLag;  // the first vectors have no predecessor: any code is decoded into the padding
    Work work{codes + (at == 0 ? 0 : behind), values + (at == 0 ? count : behind)};
    asm("" : "+r"(work.from), "+r"(work.to));  // otherwise a compiler keeps an address for each element
    return work;
  }
  void finish() const {
    for (std::int64_t i = count - kLag; i < count; i += L::kWidth) vector(codes + i, values + i);
  }

 private:
  static void vector(const std::uint8_t* from, float* to) {
    static constexpr auto kBits =
        std::bit_cast<std::array<std::uint32_t, 256>>(Codec::template values<kMoment>());
#pragma GCC unroll 16
    for (int i = 0; i < L::kWidth; ++i) {
      std::uint32_t value = kBits[from[i]];
      asm(""
          : "+r"(
              value));  // otherwise a compiler gathers the values into vectors, with the units that are busy
      std::memcpy(to + i, &value, sizeof(value));
    }
  }
};
struct NothingBeside {
  struct Work {
    void operator()(int) const {}
  };
  [[nodiscard]] static Work beside(std::int64_t) { return {}; }
};

// What stochastic rounding adds to the vector at element i of a run. Without a key, values are rounded to
// nearest.
template <class L, class Codec, Moment kMoment>
struct RoundsToNearest {
  [[nodiscard]] typename L::I operator()(std::int64_t /*i*/) const { return typename L::I(Codec::kNearest); }
};
template <class L, class Codec, Moment kMoment, int kSlot>
struct RoundsByKey {
  formula::RoundKey key;
  std::uint64_t index;  // of the run's first element in the complete parameter
  [[nodiscard]] typename L::I operator()(std::int64_t i) const {
    const auto random = formula::random32(key, index + static_cast<std::uint64_t>(i), L::iota());
    return Codec::template noise<kMoment>(formula::code_half<kSlot>(random));
  }
};

// Encodes the four vectors from `at` on. If the run ends before, the vector at `at` is repeated.
template <class L, class Codec, Moment kMoment, class Inverse, class Beside, class Added>
inline void encode_four(const float* values, std::int64_t at, std::int64_t vectors, const Inverse& inverse,
                        std::uint8_t* codes, const Beside& beside, std::int64_t begin, const Added& added) {
  using F = typename L::F;
  using I = typename L::I;
  constexpr std::int64_t kW = L::kWidth;
  struct Vector {
    F x, raw;
    I added;
  };
  const auto of = [&](int k) {
    const std::int64_t i = at + (k < vectors ? k * kW : 0);
    const F raw = L::load(values + i);
    if constexpr (codecs::kStochasticCodes<Codec, kMoment>) {
      return Vector{raw * inverse(i), raw, added(i)};
    } else {
      return Vector{raw * inverse(i), raw, I(0)};
    }
  };
  I suspect[4];
  if constexpr (Codec::kTakesBeside) {
    Codec::template encode4<kMoment, L>(of, suspect, codes, beside.beside(begin + at));
  } else {
    Codec::template encode4<kMoment, L>(of, suspect, codes);
  }
  if constexpr (Codec::kSuspects) {
    const I nearest = min_u(min_u(suspect[0], suspect[1]), min_u(suspect[2], suspect[3]));
    if (L::any_below_u(nearest, Codec::kSuspectBelow)) [[unlikely]] {
      const I stored[4] = {suspect[0], suspect[1], suspect[2],
                           suspect[3]};  // a copy, so that `suspect` stays in registers
      encode_suspects<L, Codec, kMoment>(values, at, inverse, stored, codes);
    }
  }
}

// Encodes n elements. `inverse(i)` gives the multiplier of the vector at i. `values` is padded to the next
// full vector. For `beside`, the first element is number `begin` of a tile.
template <class L, class Codec, Moment kMoment, class Inverse, class Beside = NothingBeside,
          class Added = RoundsToNearest<L, Codec, kMoment>>
inline void encode_codes(const float* values, std::int64_t n, const Inverse& inverse, std::uint8_t* codes,
                         const Beside& beside = {}, std::int64_t begin = 0, const Added& added = {}) {
  constexpr std::int64_t kW = L::kWidth;
  std::int64_t i = 0;
  if constexpr (L::kSimd && Codec::kEncodesFour) {
    for (; i + 4 * kW <= n; i += 4 * kW)
      encode_four<L, Codec, kMoment>(values, i, 4, inverse, codes + i, beside, begin, added);
    if (i == n) return;
    std::uint8_t rest[4 * kW];
    encode_four<L, Codec, kMoment>(values, i, (n - i + kW - 1) / kW, inverse, rest, NothingBeside{}, 0,
                                   added);
    std::memcpy(codes + i, rest, static_cast<std::size_t>(n - i));
  } else {
    using F = typename L::F;
    using I = typename L::I;
    for (; i < n; i += kW) {
      I suspect(-1);
      const F raw = L::load(values + i);
      I code(0);
      if constexpr (codecs::kStochasticCodes<Codec, kMoment>) {
        code = Codec::template code<kMoment>(raw * inverse(i), added(i));
      } else {
        code = Codec::template encode<kMoment, L>(raw * inverse(i), raw, suspect);
      }
      L::store_u8(code + I(Codec::code_bias(kMoment)), codes + i);
      if constexpr (L::kSimd && Codec::kSuspects) {
        const I one[4] = {suspect, I(-1), I(-1), I(-1)};
        if (L::any_below_u(suspect, Codec::kSuspectBelow)) [[unlikely]]
          encode_suspects<L, Codec, kMoment>(values, i, inverse, one, codes + i);
      }
    }
  }
}

// Encodes one block: computes its scale from the bits of its maximum, then its codes.
template <class L, class Codec, Moment kMoment, class Beside = NothingBeside,
          class Added = RoundsToNearest<L, Codec, kMoment>>
inline float encode_block(const float* values, std::int64_t n, std::uint32_t max_bits, std::uint8_t* codes,
                          const Beside& beside = {}, std::int64_t begin = 0, const Added& added = {}) {
  using F = typename L::F;
  const formula::BlockScale scale = formula::block_scale(max_bits, Codec::kLargest);
  const F inverse(scale.inverse);
  encode_codes<L, Codec, kMoment>(
      values, n, [&](std::int64_t) { return inverse; }, codes, beside, begin, added);
  if (!scale.finite) [[unlikely]]
    std::fill_n(codes, n, std::uint8_t{0});  // g++ 13 warns about a memset here
  return scale.scale;
}

// Encodes elements that each have their own (rank-1) scale. If a scale is not finite, its reciprocal is zero
// and the code is 0.
template <class L, class Codec, Moment kMoment>
inline void encode_by_inverses(const float* values, const float* inverses, std::int64_t n,
                               std::uint8_t* codes) {
  encode_codes<L, Codec, kMoment>(
      values, n, [&](std::int64_t i) { return L::load(inverses + i); }, codes);
  // A reciprocal of zero is rare, so full vectors are checked first. The maximum of kAbove minus each
  // reciprocal is kAbove if one of them is zero.
  using I = typename L::I;
  constexpr std::int32_t kAbove = 0x7F800000;
  I high(0);
  std::int64_t i = 0;
  for (; i + L::kWidth <= n; i += L::kWidth) high = max(high, I(kAbove) - bits(L::load(inverses + i)));
  if (L::reduce_max_u31(high) == kAbove) i = 0;
  for (; i < n; ++i) {
    if (inverses[i] == 0.0F) codes[i] = 0;
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

// Copies n <= kMaxTile moments to `to`, which is padded to the next full vector. A variance of -0 becomes +0.
template <class L, Moment kMoment>
inline void copy_padded(const float* values, std::int64_t n, float* to) {
  std::memset(to + n, 0, kPad * sizeof(float));
  for (std::int64_t i = 0; i < n; ++i) to[i] = kMoment == Moment::second ? values[i] + 0.0F : values[i];
}

// Calls f(first element, count) for each part of at most `most` elements.
template <class L, class Fn>
inline void for_stretches(std::int64_t count, std::int64_t most, Fn&& f) {
  for (std::int64_t at = 0; at < count; at += most) f(at, count - at < most ? count - at : most);
}

// Converts fp32 to the format, for the converters. Blocks are complete except for the last.
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
        float* const inverses = scratch->update;
        for (std::int64_t i = 0; i < n; i += L::kWidth)
          L::store(formula::rank1_inverse(L::load(scales + at + i)), inverses + i);
        encode_by_inverses<L, Codec, kMoment>(scratch->param, inverses, n, out);
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

// Converts the format to fp32.
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
