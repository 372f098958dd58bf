// The codes of a format on a GPU: the code paths of its codecs (packed.cuh), one per moment, and the location
// of their tables in shared memory. Encoding tables come first, then the rows that decode codes, which both
// moments share.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/packed.cuh"

namespace octavo::cuda {

template <class Format>
struct FormatTables {
  template <Moment kMoment>
  using Of = Packed<typename Format::template Map<kMoment>, kMoment>;
  using First = Of<Moment::first>;
  using Second = Of<Moment::second>;
  static constexpr bool kQuick = First::kQuick && Second::kQuick;
  static constexpr int kRowBytes =
      2 * (First::kRowBytes > Second::kRowBytes ? First::kRowBytes : Second::kRowBytes);
  static constexpr bool kCopied = kQuick && kRowBytes > 0;
  // True if every lane has its own copy of the rows.
  static constexpr bool copied(int arch) { return kCopied && has_large_shared(arch); }

  static constexpr int table_bytes(int arch) {
    return rows_at(arch) + (kCopied && !has_large_shared(arch) ? 256 * kRowBytes : 0);
  }

  __device__ static void fill_tables(std::uint32_t tables) {
    if constexpr (kCopied) {
      // The words of a half row. Copies fill rows by sixteen bytes, in which pairs of words are the same.
      constexpr int kHalfWords = kRow / 8;
      constexpr int kVector = kHalfWords >= 4 ? 4 : kHalfWords;
      fill<kVector>(rows(tables), 256 * 2 * kHalfWords / kVector, [](int i, float* out) {
        const int half = i * kVector / kHalfWords;
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          out[k] = half % 2 == 0 ? row_word<First>(half / 2, k) : row_word<Second>(half / 2, k);
      });
    }
    First::fill_table(tables);
    if constexpr (!kOneTable) Second::fill_table(tables + second_at(kArch));
  }

  template <Moment kMoment>
  __device__ static void decode(std::uint32_t tables, const std::uint32_t* words, float* out) {
    Of<kMoment>::template decode<kRow>(table<kMoment>(tables), rows(tables), words, out);
  }
  template <Moment kMoment>
  __device__ static void encode(std::uint32_t tables, const float* s, float inverse, std::uint32_t* words) {
    Of<kMoment>::encode(table<kMoment>(tables), s, inverse, words);
  }
  // The same for codes that are rounded stochastically.
  template <Moment kMoment, int kSlot>
  __device__ static void encode(const float* s, float inverse, const std::uint32_t* random,
                                std::uint32_t* words) {
    Of<kMoment>::template encode<kSlot>(s, inverse, random, words);
  }

 private:
  static constexpr int kRow = has_large_shared(kArch) ? kCopiedRow : kRowBytes;
  static constexpr bool kOneTable =
      First::kOneTable && std::is_same_v<typename Format::template Map<Moment::first>,
                                         typename Format::template Map<Moment::second>>;
  static constexpr int second_at(int arch) { return kOneTable ? 0 : First::table_bytes(arch); }
  static constexpr int rows_at(int arch) { return (second_at(arch) + Second::table_bytes(arch) + 7) / 8 * 8; }

  template <Moment kMoment>
  __device__ static std::uint32_t table(std::uint32_t tables) {
    return kMoment == Moment::first ? tables : tables + second_at(kArch);
  }
  __device__ static std::uint32_t rows(std::uint32_t tables) {
    return has_large_shared(kArch) ? copies_at(tables) : tables + rows_at(kArch);
  }
  template <class Codes>
  __device__ static float row_word(int byte, int word) {
    if constexpr (Codes::kRowBytes > 0) return Codes::row_word(byte, word);
    return 0.0F;
  }
};

}  // namespace octavo::cuda
