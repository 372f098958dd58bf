// Codes on a GPU, eight elements of a lane at a time: from packed words to the map's values and back.
//
// The tables are the codecs' own (codecs/*.h) in a shape for shared memory. Decoding reads a value (for
// nibbles, a pair) whose address is one byte permutation away. If a multiprocessor has enough memory, every
// lane has its own copy in its own bank. Encoding finds the nearest code by one look-up: the entry of a
// magnitude's exponent and top mantissa bits, plus the magnitude's bits, has the rank in its highest byte
// (codecs/dynamic_map.h, Buckets). Small tables have copies, too. Signs and biases are applied to four bytes
// at once.
//
// Encoders get the moments of one block and the reciprocal of its scale, both finite. Zero variances are the
// caller's task: a second moment's code is at least that of the smallest positive value.
//
// A codec without a specialization here uses the general one, which works element by element.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/dynamic_map.h"
#include "core/builtin_registry.h"
#include "cuda/runtime/arch.h"
#include "cuda/step/tensor_table.h"
#include "formula/stochastic_round.h"
#include "lane/scalar.h"

#include <bit>
#include <cstdint>

namespace octavo::cuda {

// Accesses shared memory by its own 32-bit addresses: one instruction, where a pointer needs an addition
// more.
__device__ inline float shared_f32(std::uint32_t address, int offset) {
  float out;
  asm("ld.shared.f32 %0, [%1];" : "=f"(out) : "r"(address + offset));
  return out;
}
__device__ inline float2 shared_f32x2(std::uint32_t address, int offset) {
  float2 out;
  asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(out.x), "=f"(out.y) : "r"(address + offset));
  return out;
}
__device__ inline std::uint32_t shared_u32(std::uint32_t address, int offset) {
  std::uint32_t out;
  asm("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(address + offset));
  return out;
}
// Works like __byte_perm, but ignores the selectors that replicate a sign. It is opaque to the compiler,
// which would turn shifts by complete bytes back into longer sequences.
template <std::uint32_t kSelector>
__device__ inline std::uint32_t permute(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "n"(kSelector));
  return out;
}

// Buckets with the bucket's own bits subtracted: entry + bits of x is rank << 24 plus low bits. Ranks below
// `lowest` are raised to it. In shared memory an entry has `copies` neighbours, for that number of lanes.
template <int kMantissaBits, int kLowExponent>
struct PackedBuckets {
  using Source = codecs::Buckets<kMantissaBits, kLowExponent>;
  static constexpr int kCount = static_cast<int>(Source::kCount);
  static constexpr int kLowBits = Source::kLowBits;
  static constexpr std::uint32_t kFirst = Source::kFirst;
  static constexpr float kLow = std::bit_cast<float>(kFirst << kLowBits);
  std::uint32_t entry[Source::kCount]{};

  template <int kSize>
  constexpr PackedBuckets(const codecs::Magnitudes<kSize>& map, std::uint32_t lowest) {
    const Source source(map);
    for (std::uint32_t b = 0; b < Source::kCount; ++b) {
      const std::uint32_t rank = source.entry[b] >> kLowBits;
      // The distance to the next rank; nothing carries if there is no boundary.
      const std::uint32_t low = source.entry[b] & Source::kLowMask;
      const std::uint32_t carries = low == 0 ? 0 : low + ((1U << 24) - 1 - Source::kLowMask);
      // A bucket with both ranks below the lowest has no boundary left.
      const std::uint32_t raised = rank < lowest ? lowest << 24 : (rank << 24) + carries;
      entry[b] = raised - ((b + kFirst) << kLowBits);
    }
  }
};

using Signed8Buckets = PackedBuckets<6, -22>;
using Unsigned8Buckets = PackedBuckets<7, -23>;
using Signed4Buckets = PackedBuckets<3, -9>;
__device__ const Signed8Buckets kSigned8Packed(codecs::kSigned8, 0);
__device__ const Unsigned8Buckets kUnsigned8Packed(codecs::kUnsigned8, 1);
__device__ const Signed4Buckets kSigned4Packed(codecs::kSigned4, 0);

template <int kCount>
struct Values {
  float value[kCount]{};
  constexpr Values(const std::array<float, kCount>& from) {  // NOLINT(google-explicit-constructor)
    for (int i = 0; i < kCount; ++i) value[i] = from[static_cast<std::size_t>(i)];
  }
};
template <class Codec, Moment kMoment>
__device__ const Values<1 << Codec::kBits> kValues(Codec::template values<kMoment>());

// Returns the rank of a magnitude in the highest byte. `table` is the lane's copy.
template <class Buckets, int kCopies>
__device__ inline std::uint32_t rank_sum(std::uint32_t table, float magnitude) {
  constexpr std::uint32_t kStride = 4 * kCopies;
  constexpr int kShift = Buckets::kLowBits - std::countr_zero(kStride);
  const std::uint32_t b = __float_as_uint(fmaxf(magnitude, Buckets::kLow));
  const std::uint32_t bucket = b & ~((1U << Buckets::kLowBits) - 1);
  return shared_u32(table + (bucket >> kShift), -static_cast<int>(kStride * Buckets::kFirst)) + b;
}
// Returns the highest byte of each.
__device__ inline std::uint32_t high_bytes(const std::uint32_t* r) {
  return permute<0x5410>(permute<0x0073>(r[0], r[1]), permute<0x0073>(r[2], r[3]));
}
__device__ inline std::uint32_t copy_of_lane(std::uint32_t table, int copies) {
  return table + (threadIdx.x & static_cast<std::uint32_t>(copies - 1)) * 4U;
}
// Returns 0xFF for negative values.
__device__ inline std::uint32_t sign_bytes(const float* x) {
  const auto b = [&](int i) { return __float_as_uint(x[i]); };
  return permute<0x5410>(permute<0x00FB>(b(0), b(1)), permute<0x00FB>(b(2), b(3)));
}

// Returns four codes of a signed map from ranks r <= kOne (the rank of 1, a power of two) and signs: zero is
// kOne - 1, positive codes are above it, and a negative maximum, which has no code of its own, gets code 0.
template <std::uint32_t kOne, int kOneBit>
__device__ inline std::uint32_t signed_codes(std::uint32_t ranks, std::uint32_t signs) {
  constexpr std::uint32_t kZero = (kOne - 1) * 0x01010101U;
  const std::uint32_t clamped = ranks - ((ranks >> kOneBit) & 0x01010101U);
  return (signs & (kZero ^ clamped)) | (~signs & (ranks + kZero));
}

// Writes words into shared memory, by all threads of the block.
template <class Fn>
__device__ inline void fill(std::uint32_t to, int count, Fn&& value) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + 4U * static_cast<std::uint32_t>(i)), "r"(value(i))
                 : "memory");
}

// Writes vectors of kWords in the same way.
template <int kWords, class Fn>
__device__ inline void fill(std::uint32_t to, int count, Fn&& values) {
  static_assert(kWords == 4 || kWords == 2 || kWords == 1);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    float x[kWords];
    values(i, x);
    const std::uint32_t at = to + 4U * kWords * static_cast<std::uint32_t>(i);
    if constexpr (kWords == 4) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                   "f"(x[3])
                   : "memory");
    } else {
#pragma unroll
      for (int k = 0; k < kWords; ++k)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + 4U * static_cast<std::uint32_t>(k)), "f"(x[k])
                     : "memory");
    }
  }
}

// Returns where a decoding table whose rows have copies starts: at an address whose low sixteen bits are
// zero, so that a byte of code and the lane's offset can be inserted there. The host has checked that the
// table begins where SharedMap assumes (StepKernel::shared_start).
__device__ inline std::uint32_t copies_at(std::uint32_t tables) { return (tables + 0xFFFFU) & ~0xFFFFU; }
inline constexpr int kCopiesAlignment = 0x10000;
inline constexpr int kCopiesBytes = 0x10000;
inline constexpr int kCopiedRow = 256;
template <int kByte>
__device__ inline std::uint32_t decode_address(std::uint32_t lane_copy, std::uint32_t word) {
  return permute<0x3200U | ((4U + kByte) << 4)>(lane_copy, word);
}
// A row is for both moments: the first half is for the first moment, the second for the second.
template <Moment kMoment, int kRow>
inline constexpr int kHalf = kMoment == Moment::first ? 0 : kRow / 2;

// Returns code i of eight in words, whose codes are stored from the highest bit of each byte on (cpu/pack.h).
template <int kBits>
__device__ inline void put_code(std::uint32_t* words, int i, std::uint32_t code) {
  const int bit = i * kBits;
  const std::uint32_t two = code << (16 - kBits - bit % 8);  // its byte and the next
  words[bit / 32] |= (two >> 8) << (bit / 8 % 4 * 8);
  if (bit % 8 + kBits > 8) words[(bit + 8) / 32] |= (two & 255U) << ((bit / 8 + 1) % 4 * 8);
}
template <int kBits>
__device__ inline void clear_code(std::uint32_t* words, int i) {
  constexpr int kWords = (kBits + 3) / 4;
  std::uint32_t mask[kWords] = {};
  put_code<kBits>(mask, i, (1U << kBits) - 1);
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] &= ~mask[w];
}
// Returns code `at` of a tensor. REQUIRES: its first code begins a byte.
template <int kBits>
__device__ inline std::uint32_t load_code(const std::uint8_t* bytes, std::int64_t at) {
  if constexpr (kBits == 8) return bytes[at];
  const std::int64_t bit = at * kBits;
  const int from = static_cast<int>(bit % 8);
  const std::uint32_t next = 8 % kBits != 0 && from + kBits > 8 ? bytes[bit / 8 + 1] : 0U;
  const std::uint32_t two = static_cast<std::uint32_t>(bytes[bit / 8]) << 8 | next;
  return (two >> (16 - kBits - from)) & ((1U << kBits) - 1);
}

// The random words of eight neighbouring elements of a parameter (formula::random32), for codes that are
// rounded stochastically. `second` is the high_word of `high`, which most elements of a tile share.
__device__ inline void random_words(formula::RoundKey key, std::uint32_t high, std::uint32_t second,
                                    std::uint64_t index, std::uint32_t* out) {
  const auto low = static_cast<std::uint32_t>(index);
#pragma unroll
  for (std::uint32_t i = 0; i < kChunk; ++i)
    out[i] = formula::mix32(scalar::I32::of(low + i), scalar::I32::of(key.low), scalar::I32::of(second)).u();
  if ((index + kChunk - 1) >> 32 == high) return;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) out[i] = formula::random32(key, index, scalar::I32(i)).u();
}

// The codes of one moment, eight elements of a lane at a time:
//   kQuick       the codec has a vectorized path
//   kWords       32-bit words of eight codes
//   table_bytes  bytes of shared memory, by architecture: a table that fill_table fills for encode or decode
//   kOneTable    both moments of the codec use the same table
//   kRowBytes    not 0: decode gets a table of 256 rows, one for each byte of codes. A row has kRowBytes for
//                this moment or, if shared memory is large, 128: a copy for each lane. row_word fills it.
template <class Codec, Moment kMoment>
struct Packed {
  static constexpr bool kQuick = false;
  static constexpr bool kOneTable = false;
  static constexpr int kRowBytes = 0;
  static constexpr int kWords = (Codec::kBits + 3) / 4;
  static constexpr int table_bytes(int /*arch*/) { return 0; }
  __device__ static void fill_table(std::uint32_t /*table*/) {}

  __device__ static void encode(std::uint32_t /*table*/, const float* s, float inverse,
                                std::uint32_t* words) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const scalar::F32 positive(1.0F);  // the caller handles zeros
      scalar::I32 none;
      const scalar::I32 code = Codec::template encode<kMoment, scalar::Lane>(s[i] * inverse, positive, none) +
                               scalar::I32(Codec::code_bias(kMoment));
      put_code<Codec::kBits>(words, i, max(min(code, scalar::I32(255)), scalar::I32(0)).u());
    }
  }

  // The same for codes that are rounded stochastically, with a random word for each element.
  template <int kSlot>
  __device__ static void encode(const float* s, float inverse, const std::uint32_t* random,
                                std::uint32_t* words) requires(codecs::kStochasticCodes<Codec, kMoment>) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const auto added =
          Codec::template noise<kMoment>(formula::code_half<kSlot>(scalar::I32::of(random[i])));
      put_code<Codec::kBits>(words, i, Codec::template code<kMoment>(scalar::F32(s[i] * inverse), added).u());
    }
  }
};

// Formats without blocks need no tables.
template <class Codec, Moment kMoment>
requires(Codec::kScale == ScalePolicy::none) struct Packed<Codec, kMoment> {
  static constexpr bool kQuick = true;
  static constexpr bool kOneTable = false;
  static constexpr int kRowBytes = 0;
  static constexpr int table_bytes(int /*arch*/) { return 0; }
  __device__ static void fill_table(std::uint32_t /*table*/) {}
};

template <Moment kMoment>
struct Packed<codecs::Int8, kMoment> {
  static constexpr bool kQuick = true;
  static constexpr bool kOneTable = false;
  static constexpr int kRowBytes = 4;
  static constexpr int kWords = 2;
  using Buckets = std::conditional_t<kMoment == Moment::first, Signed8Buckets, Unsigned8Buckets>;
  static constexpr int table_bytes(int /*arch*/) { return 4 * Buckets::kCount; }

  __device__ static void fill_table(std::uint32_t table) {
    fill(table, Buckets::kCount, [](int i) {
      return kMoment == Moment::first ? kSigned8Packed.entry[i] : kUnsigned8Packed.entry[i];
    });
  }
  __device__ static float row_word(int byte, int /*word*/) {
    return kValues<codecs::Int8, kMoment>.value[byte];
  }

  template <int kRow>
  __device__ static void decode(std::uint32_t /*table*/, std::uint32_t rows, const std::uint32_t* words,
                                float* out) {
    if constexpr (has_large_shared(kArch)) {
      const std::uint32_t lane = rows + (threadIdx.x & 31U) * 4U;
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        out[4 * w] = shared_f32(decode_address<0>(lane, words[w]), kHalf<kMoment, kRow>);
        out[4 * w + 1] = shared_f32(decode_address<1>(lane, words[w]), kHalf<kMoment, kRow>);
        out[4 * w + 2] = shared_f32(decode_address<2>(lane, words[w]), kHalf<kMoment, kRow>);
        out[4 * w + 3] = shared_f32(decode_address<3>(lane, words[w]), kHalf<kMoment, kRow>);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        out[i] = shared_f32(rows + kRow * ((words[i / 4] >> (8 * (i % 4))) & 255U), kHalf<kMoment, kRow>);
    }
  }

  __device__ static void encode(std::uint32_t table, const float* s, float inverse, std::uint32_t* words) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      float x[4];
      std::uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = s[4 * w + i] * inverse;
        r[i] = rank_sum<Buckets, 1>(table, kMoment == Moment::first ? fabsf(x[i]) : x[i]);
      }
      words[w] = high_bytes(r);
      if constexpr (kMoment == Moment::first) words[w] = signed_codes<128, 7>(words[w], sign_bytes(x));
    }
  }
};

// Codes of four bits: decodes a pair per byte.
template <class Codec, Moment kMoment>
struct PackedNibbles {
  static constexpr bool kQuick = true;
  static constexpr bool kOneTable = false;
  static constexpr int kRowBytes = 8;
  static constexpr int kWords = 1;
  // A pair of values per byte, with the even element in the high nibble. Half a warp reads pairs at a time,
  // so sixteen copies keep every lane in its own banks.
  __device__ static float row_word(int byte, int word) {
    return kValues<Codec, kMoment>.value[word % 2 == 0 ? byte >> 4 : byte & 15];
  }

  template <int kRow>
  __device__ static void decode(std::uint32_t /*table*/, std::uint32_t rows, const std::uint32_t* words,
                                float* out) {
    float2 pairs[4];
    if constexpr (has_large_shared(kArch)) {
      const std::uint32_t lane = rows + (threadIdx.x & 15U) * 8U;
      pairs[0] = shared_f32x2(decode_address<0>(lane, words[0]), kHalf<kMoment, kRow>);
      pairs[1] = shared_f32x2(decode_address<1>(lane, words[0]), kHalf<kMoment, kRow>);
      pairs[2] = shared_f32x2(decode_address<2>(lane, words[0]), kHalf<kMoment, kRow>);
      pairs[3] = shared_f32x2(decode_address<3>(lane, words[0]), kHalf<kMoment, kRow>);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = shared_f32x2(rows + kRow * ((words[0] >> (8 * i)) & 255U), kHalf<kMoment, kRow>);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = pairs[i].x;
      out[2 * i + 1] = pairs[i].y;
    }
  }
};

template <Moment kMoment>
struct Packed<codecs::Int4, kMoment> : PackedNibbles<codecs::Int4, kMoment> {
  // One copy for each lane if there is space.
  static constexpr int copies(int arch) { return has_large_shared(arch) ? 32 : 8; }
  static constexpr int table_bytes(int arch) {
    return kMoment == Moment::first ? 4 * Signed4Buckets::kCount * copies(arch) : 0;
  }

  __device__ static void fill_table(std::uint32_t table) {
    constexpr int kCopies = copies(kArch);
    if constexpr (kMoment == Moment::first)
      fill(table, Signed4Buckets::kCount * kCopies, [](int i) { return kSigned4Packed.entry[i / kCopies]; });
  }
  // Encodes four codes, one per byte, of every second element.
  __device__ static std::uint32_t encode4(std::uint32_t table, const float* s, float inverse) {
    float x[4];
    std::uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = s[2 * i] * inverse;
      if constexpr (kMoment == Moment::first) {
        r[i] = rank_sum<Signed4Buckets, copies(kArch)>(table, fabsf(x[i]));
      } else {
        // 2^23 + 16x - 1/2, rounded up: 16x to nearest, ties down, in the low byte.
        r[i] = __float_as_uint(__fmaf_ru(fmaxf(x[i], 0.0625F), 16.0F, 8388607.5F));
      }
    }
    if constexpr (kMoment == Moment::first) {
      return signed_codes<8, 3>(high_bytes(r), sign_bytes(x));
    } else {
      const std::uint32_t low = permute<0x5410>(permute<0x0040>(r[0], r[1]), permute<0x0040>(r[2], r[3]));
      return low - 0x01010101U;
    }
  }
  __device__ static void encode(std::uint32_t table, const float* s, float inverse, std::uint32_t* words) {
    const std::uint32_t own = copy_of_lane(table, copies(kArch));
    words[0] = (encode4(own, s, inverse) << 4) | encode4(own, s + 1, inverse);
  }
};

// fp4: arithmetic in place of encoding tables (codecs/small_float.h).
template <class Codec, Moment kMoment>
struct PackedFp4 : PackedNibbles<Codec, kMoment> {
  static constexpr int table_bytes(int /*arch*/) { return 0; }
  __device__ static void fill_table(std::uint32_t /*table*/) {}

  template <int kSlot>
  __device__ static void encode(const float* s, float inverse, const std::uint32_t* random,
                                std::uint32_t* words) {
    std::uint32_t halves[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      std::uint32_t c[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] = code<kSlot>(s[2 * i + odd] * inverse, random[2 * i + odd]);
      halves[odd] = permute<0x5410>(permute<0x0040>(c[0], c[1]), permute<0x0040>(c[2], c[3]));
    }
    words[0] = (halves[0] << 4) | halves[1];
  }

 private:
  // Returns a code in the lowest byte. Codec::code has the same bits for finite values.
  template <int kSlot>
  __device__ static std::uint32_t code(float x, std::uint32_t random) {
    const std::uint32_t added =
        Codec::template noise<kMoment>(formula::code_half<kSlot>(scalar::I32::of(random))).u();
    if constexpr (kMoment == Moment::second) {
      const float from = fminf(fmaxf(x, 1.0F), Codec::template kTop<kMoment>);
      return ((__float_as_uint(from) + added) >> Codec::kShift) - static_cast<std::uint32_t>(Codec::kOne);
    } else {
      const float magnitude = fabsf(x);
      const float from =
          fminf(fmaxf(magnitude + 1.0F, magnitude + magnitude), 2.0F * Codec::template kTop<kMoment>);
      const std::uint32_t kept =
          ((__float_as_uint(from) + added) >> Codec::kShift) - static_cast<std::uint32_t>(Codec::kOne);
      return kept | ((__float_as_uint(x) >> 28) & 8U);
    }
  }
};
template <Moment kMoment>
struct Packed<codecs::Fp4, kMoment> : PackedFp4<codecs::Fp4, kMoment> {};
template <Moment kMoment>
struct Packed<codecs::SecondOf<codecs::Fp4>, kMoment> : PackedFp4<codecs::SecondOf<codecs::Fp4>, kMoment> {};

// fp8: conversions in hardware, two at a time, if the architecture has them; otherwise a table and the
// codec's arithmetic.
template <class Fp8, Moment kMoment>
struct PackedFp8 {
  static constexpr bool kQuick = true;
  static constexpr bool kOneTable = true;
  static constexpr int kRowBytes = 0;
  static constexpr int kWords = 2;
  static constexpr bool kHardware = converts_fp8(kArch);
  static constexpr bool kE4M3 = std::is_same_v<Fp8, codecs::E4M3>;
  static constexpr int table_bytes(int arch) { return converts_fp8(arch) ? 0 : 256 * 4; }

  __device__ static void fill_table(std::uint32_t table) {
    if constexpr (!kHardware) {
      fill(table, 256, [](int i) { return __float_as_uint(kValues<Fp8, Moment::first>.value[i]); });
    }
  }

  template <int kRow>
  __device__ static void decode(std::uint32_t table, std::uint32_t /*rows*/, const std::uint32_t* words,
                                float* out) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      const std::uint32_t pair = words[i / 4] >> (8 * (i % 4));
      if constexpr (kHardware) {
        std::uint32_t halves = 0;
        const auto both = static_cast<std::uint16_t>(pair);
        if constexpr (kE4M3) {
          asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(both));
        } else {
          asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(both));
        }
        asm("{.reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}"
            : "=f"(out[i]), "=f"(out[i + 1])
            : "r"(halves));
      } else {
        out[i] = shared_f32(table + 4U * (pair & 255U), 0);
        out[i + 1] = shared_f32(table + 4U * ((pair >> 8) & 255U), 0);
      }
    }
  }

  __device__ static void encode(std::uint32_t /*table*/, const float* s, float inverse,
                                std::uint32_t* words) {
    const auto scaled = [&](int i) {
      return kMoment == Moment::first ? s[i] * inverse : fmaxf(s[i] * inverse, Fp8::kUnit);
    };
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (kHardware) {
        std::uint16_t low = 0;
        std::uint16_t high = 0;
        if constexpr (kE4M3) {
          asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
              : "=h"(low)
              : "f"(scaled(4 * w + 1)), "f"(scaled(4 * w)));
          asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
              : "=h"(high)
              : "f"(scaled(4 * w + 3)), "f"(scaled(4 * w + 2)));
        } else {
          asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
              : "=h"(low)
              : "f"(scaled(4 * w + 1)), "f"(scaled(4 * w)));
          asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
              : "=h"(high)
              : "f"(scaled(4 * w + 3)), "f"(scaled(4 * w + 2)));
        }
        words[w] = static_cast<std::uint32_t>(high) << 16 | low;
      } else {
        words[w] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scalar::I32 none;
          const scalar::I32 code =
              Fp8::template encode<kMoment, scalar::Lane>(scaled(4 * w + i), s[4 * w + i], none);
          words[w] |= ((code.u() + static_cast<std::uint32_t>(Fp8::code_bias(kMoment))) & 255U) << (8 * i);
        }
      }
    }
  }
};
template <Moment kMoment>
struct Packed<codecs::E4M3, kMoment> : PackedFp8<codecs::E4M3, kMoment> {};
template <Moment kMoment>
struct Packed<codecs::E5M2, kMoment> : PackedFp8<codecs::E5M2, kMoment> {};

}  // namespace octavo::cuda
