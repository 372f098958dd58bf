// Moves a lane's share of a tile between memory and registers. If the architecture has asynchronous copies to
// shared memory (compute capability 8 and later), each lane requests its share of the next tile before it
// processes the current one, so that no register waits for memory; otherwise it loads when needed. No lane
// reads another lane's data, so no synchronization is needed, except for gradients at an address that is not
// a multiple of sixteen (a view into a bucket): the warp copies those word by word in the order of memory and
// then sorts them. Results go from registers to memory.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/element_io.cuh"
#include "cuda/step/format_tables.cuh"
#include "cuda/step/kernels.h"

namespace octavo::cuda {

inline constexpr bool kStaged = has_async_copies(kArch);

template <int kBytes>
struct WordOf;
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// Eight elements of a lane in an array of kBits per element, in kBits bytes. They are neighbours or, with
// kQuads, two groups of four that are kQuadApart elements apart, so that fp32 arrays, too, are accessed with
// sixteen bytes per lane and without gaps.
inline constexpr int kQuadApart = kTile / 4;
template <int kBits, bool kQuads>
struct Eight {
  static constexpr int kPieces = kQuads || kBits > 16 ? 2 : 1;
  static constexpr int kBytes = kBits / kPieces;                        // bytes per piece
  static constexpr int kApart = (kQuads ? kQuadApart : 4) * kBits / 8;  // bytes from piece to piece
  using Word = typename WordOf<kBytes>::Type;
  Word piece[kPieces];
};

// `kOnce`: no other access uses the same sectors, so they bypass the first-level cache.
template <int kBytes, bool kOnce>
__device__ inline void copy_async(std::uint32_t to, const void* from) {
  if constexpr (kBytes == 16 && kOnce) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "n"(kBytes)
                 : "memory");
  }
}
__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last group of copies have arrived.
__device__ inline void wait_copies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
__device__ inline void wait_all_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

template <class V>
__device__ inline V shared_load(std::uint32_t address) {
  V out;
  if constexpr (sizeof(V) == 16) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(address)
                 : "memory");
  } else if constexpr (sizeof(V) == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(out.x), "=r"(out.y) : "r"(address) : "memory");
  } else {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(address) : "memory");
  }
  return out;
}

template <class V>
__device__ inline void shared_store(std::uint32_t address, const V& value) {
  if constexpr (sizeof(V) == 16) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
  } else {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y) : "memory");
  }
}

// Positions in a tensor are counted in chunks or, if lanes have two groups of four, in those groups. So they
// are complete bytes in every format and fit 32 bits for any tensor on a GPU (later tiles use the slow path).
template <bool kQuads>
inline constexpr int kUnit = kQuads ? kChunk / 2 : kChunk;

// The destination of a warp's copies, and the lane, which stays in a register.
struct Stage {
  std::uint32_t at;
  std::uint32_t lane;
};

// One array of a tile: kBits per element, `kAt` bytes from the start of a warp's stage.
template <int kBits, bool kQuads, int kAt>
struct ArrayIo {
  using Share = Eight<kBits, kQuads>;
  using Word = typename Share::Word;

  static constexpr std::int64_t kStep = kUnit<kQuads> * kBits / 8;  // bytes per unit
  static __device__ const char* at(const void* base, std::uint32_t place) {
    return static_cast<const char*>(base) + kStep * place;
  }

  // Fetches both chunks of a lane: from `first` on, and `apart` further. Positions are counted in units of
  // kUnit.
  static __device__ void fetch(Stage stage, const void* base, std::uint32_t first, std::uint32_t apart) {
    const char* from = at(base, first);
    fetch_chunk<0>(stage, from);
    fetch_chunk<1>(stage, from + kStep * apart);
  }
  // Fetches one chunk to the location that `read` calls kIndex.
  template <int kIndex>
  static __device__ void fetch_chunk(Stage stage, const char* from) {
#pragma unroll
    for (int p = 0; p < Share::kPieces; ++p)
      copy_async<Share::kBytes, kQuads || Share::kPieces == 1>(address(stage, kIndex, p),
                                                               from + p * Share::kApart);
  }
  template <int kIndex>
  static __device__ Share read(Stage stage) {
    Share out;
#pragma unroll
    for (int p = 0; p < Share::kPieces; ++p) out.piece[p] = shared_load<Word>(address(stage, kIndex, p));
    return out;
  }
  static __device__ Share get(const void* base, std::uint32_t place) {
    Share out;
#pragma unroll
    for (int p = 0; p < Share::kPieces; ++p) out.piece[p] = load<Word>(at(base, place), p * Share::kApart);
    return out;
  }
  // Loads from any element's address, element by element.
  static __device__ Share get_any(const void* base, std::uint32_t place) {
    Share out;
    auto* words = reinterpret_cast<std::uint32_t*>(&out);
#pragma unroll
    for (int w = 0; w < kBits / 4; ++w) {
      const int from = w / kPieceWords * Share::kApart + w % kPieceWords * 4;
      if constexpr (kBits == 32) {
        words[w] = load<std::uint32_t>(at(base, place), from);
      } else {
        const std::uint32_t low = load<std::uint16_t>(at(base, place), from);
        words[w] = low | static_cast<std::uint32_t>(load<std::uint16_t>(at(base, place), from + 2)) << 16;
      }
    }
    return out;
  }
  // Works like `fetch` for any address of a word.
  static __device__ void fetch_by_words(Stage stage, const void* base, std::uint32_t first,
                                        std::uint32_t apart) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const char* const from = at(base, first) + c * (kStep * apart);
#pragma unroll
      for (int w = 0; w < kBits / 4; ++w) {
        const int piece = w / kPieceWords;
        copy_async<4, false>(address(stage, c, piece) + w % kPieceWords * 4,
                             from + piece * Share::kApart + w % kPieceWords * 4);
      }
    }
  }
  // Works like `fetch` for any address of an element: it copies a tile's first `bytes` in words in the order
  // of memory. At an odd number of halves, the first word begins one half early, and the last half of `bytes`
  // is missing.
  static __device__ void fetch_words(Stage stage, const char* tile, std::uint32_t bytes) {
    const std::uint32_t mine = stage.lane * 4U;
    const char* from = tile - (kBits < 32 ? reinterpret_cast<std::uintptr_t>(tile) & 2U : 0U) + mine;
    __syncwarp();  // the lanes that used this stage before have read it
#pragma unroll
    for (int i = 0; i < kTile * kBits / 8; i += 128)
      if (i + mine < bytes) copy_async<4, false>(stage.at + kAt + i + mine, from + i);
  }
  // Moves both chunks of every lane, `first` and `apart` counted from the tile's start, to where `read`
  // expects them.
  static __device__ void sort_words(Stage stage, const char* tile, std::uint32_t bytes, std::uint32_t first,
                                    std::uint32_t apart) {
    const bool odd = kBits < 32 && (reinterpret_cast<std::uintptr_t>(tile) & 2U) != 0;
    __syncwarp();  // the copies of all lanes have arrived
    Word words[2 * Share::kPieces];
#pragma unroll
    for (int i = 0; i < 2 * Share::kPieces; ++i) {
      const std::uint32_t from =
          (first + i / Share::kPieces * apart) * kStep + i % Share::kPieces * Share::kApart;
      words[i] = shared_load<Word>(stage.at + kAt + from);
      if (odd) shift_half(words[i], stage, tile, bytes, from + Share::kBytes);
    }
    __syncwarp();  // all lanes have read
#pragma unroll
    for (int i = 0; i < 2 * Share::kPieces; ++i)
      shared_store(address(stage, i / Share::kPieces, i % Share::kPieces), words[i]);
  }
  // `further` is the number of units added to the address, which costs nothing if it is known at compile
  // time.
  static __device__ void put(void* base, std::uint32_t place, const Share& words, std::uint32_t further = 0) {
    void* to = const_cast<char*>(at(base, place) + kStep * further);
#pragma unroll
    for (int p = 0; p < Share::kPieces; ++p) store(to, p * Share::kApart, words.piece[p]);
  }

 private:
  static constexpr int kPieceWords = Share::kBytes / 4;

  // Words that begin one half early lose that half and get the one that ends at byte `end` of the tile.
  static __device__ void shift_half(Word& piece, Stage stage, const char* tile, std::uint32_t bytes,
                                    std::uint32_t end) {
    const std::uint32_t next =
        end < bytes ? shared_load<std::uint32_t>(stage.at + kAt + end) : load<std::uint16_t>(tile, end - 2);
    auto* words = reinterpret_cast<std::uint32_t*>(&piece);
#pragma unroll
    for (int w = 0; w < kPieceWords; ++w)
      words[w] = __funnelshift_r(words[w], w + 1 < kPieceWords ? words[w + 1] : next, 16);
  }
  static __device__ std::uint32_t address(Stage stage, int index, int piece) {
    return stage.at + stage.lane * Share::kBytes + kAt +
           (index * Share::kPieces + piece) * 32 * Share::kBytes;
  }
};

// The arrays of a tile.
template <WeightKind kKind, bool kBlocked, int... kSlotBits>
struct TileArrays {
  static constexpr int kSlots = sizeof...(kSlotBits);
  static constexpr bool kQuads = !kBlocked;
  static constexpr bool kWideWeights = kKind == WeightKind::f32;
  static constexpr bool kSplitsSectors =
      kWideWeights && kBlocked;  // two pieces per chunk, sixteen bytes each
  static constexpr int kParamBits = kWideWeights ? 32 : 16;
  static constexpr int kResidualBits = kKind == WeightKind::residual16  ? 16
                                       : kKind == WeightKind::residual8 ? 8
                                                                        : 0;
  // The number of arrays of sixteen values that a lane keeps in registers until the block's maximum is known.
  static constexpr int kHeld = kSlots + (kBlocked && kResidualBits > 0 ? 1 : 0);
  static constexpr int bytes(int bits) { return kTile * bits / 8; }
  static constexpr int kResidualAt = bytes(kParamBits);
  static constexpr int kGradAt = kResidualAt + bytes(kResidualBits);
  static constexpr int kCodesAt = kGradAt + bytes(kParamBits);
  // Returns the slots' bits, or zero if there are none.
  static constexpr int slot_bits(int slot) {
    const int bits[] = {kSlotBits..., 0};
    return bits[slot];
  }
  static constexpr int codes_at(int slot) {
    int at = kCodesAt;
    for (int k = 0; k < slot; ++k) at += bytes(slot_bits(k));
    return at;
  }
  static constexpr int kScalesAt = codes_at(kSlots);  // one scale per lane and slot
  static constexpr int kStageBytes = kScalesAt + (kBlocked ? kSlots * 128 : 0);
  static constexpr int kColumnBytes = 0;  // per warp: scales of columns, if a step uses panels
  static __device__ std::uint32_t scale_at(Stage stage, int slot) {
    return stage.at + stage.lane * 4U + kScalesAt + static_cast<std::uint32_t>(slot) * 128U;
  }

  using Param = ArrayIo<kParamBits, kQuads, 0>;
  using Residual = ArrayIo<kResidualBits == 0 ? 16 : kResidualBits, kQuads, kResidualAt>;
  template <bool kWide>
  using Grad = ArrayIo<kWide ? 32 : 16, kQuads, kGradAt>;
  template <int kSlot>
  using Codes = ArrayIo<slot_bits(kSlot), kQuads, codes_at(kSlot)>;
  // A stage has space for one chunk at a time of gradients that are wider than the weights.
  static constexpr bool halved(bool wide) { return wide && !kWideWeights; }
};

// A tensor's entry in shared memory, where an access takes a few cycles. The first-level cache is small
// compared with the stages, and streaming data evicts the entry from it.
inline constexpr int kEntryBytes = (static_cast<int>(sizeof(TensorEntry)) + 127) / 128 * 128;

// Shared memory that the system uses, below that of a block.
inline constexpr int kReservedShared = 1024;

// The shared memory of a block: the codec's tables, and two stages for each warp. Copies of decoding tables
// start at a multiple of 64 KB; stages fill the space before them first.
template <class Codes, class Arrays>
struct SharedMap {
  static constexpr int kEntriesAt = 2 * Arrays::kStageBytes;
  static_assert(kEntriesAt % 128 == 0);
  // The registers of a thread. With weights, gradients and addresses, the compiler fits two moments into 96
  // registers, but not the residuals of masters in addition.
  static constexpr int kRegisters = 64 + 16 * (Arrays::kHeld > 2 ? Arrays::kHeld : 2);

  static constexpr bool staged(int arch) { return Codes::kQuick && has_async_copies(arch); }
  // If lanes fetch sectors in halves, the first-level cache joins them, and a block of this size leaves twice
  // as much cache as a larger one.
  static constexpr int kLeavesCache = 195 * 1024;
  // If shared memory is small, more warps are better than cached entries. And if the cache joins sectors, it
  // must not be halved.
  static constexpr bool caches_entries(int arch) {
    if (!staged(arch) || shared_limit(arch) <= 200 * 1024) return false;
    return !Arrays::kSplitsSectors || bytes_with(arch, kEntriesAt) > kLeavesCache;
  }
  // Bytes of a warp: two stages, the entries of the tensors of both tiles, and scales of columns, which must
  // not reduce the number of warps.
  static constexpr int columns_at(int arch) {
    return kEntriesAt + (caches_entries(arch) ? 2 * kEntryBytes : 0);
  }
  static constexpr bool caches_columns(int arch) {
    const int with = columns_at(arch) + Arrays::kColumnBytes;
    return caches_entries(arch) && warps_with(arch, with) == warps_with(arch, columns_at(arch));
  }
  static constexpr int warp_bytes(int arch) {
    return columns_at(arch) + (caches_columns(arch) ? Arrays::kColumnBytes : 0);
  }
  static constexpr int start(int arch) { return Codes::copied(arch) ? kReservedShared : 0; }
  static constexpr int stages_at(int arch) { return (Codes::table_bytes(arch) + 127) / 128 * 128; }
  static constexpr int kCopiesEnd = kCopiesAlignment - kReservedShared + kCopiesBytes;
  static constexpr int warps(int arch) { return warps_with(arch, warp_bytes(arch)); }
  static constexpr int threads(int arch) { return 32 * warps(arch); }
  static constexpr int bytes(int arch) { return bytes_with(arch, warp_bytes(arch)); }
  static __device__ std::uint32_t stage_of(std::uint32_t shared, std::uint32_t warp) {
    if constexpr (Codes::copied(kArch)) {
      constexpr std::uint32_t kEarly = early(kArch, warp_bytes(kArch));
      if (warp >= kEarly) return copies_at(shared) + kCopiesBytes + (warp - kEarly) * warp_bytes(kArch);
    }
    return shared + stages_at(kArch) + warp * warp_bytes(kArch);
  }

 private:
  // With `each` bytes per warp: the number of warps whose stages fit before the copies, the number whose
  // stages fit, the number of warps, and the total bytes.
  static constexpr int early(int arch, int each) {
    return (kCopiesAlignment - kReservedShared - stages_at(arch)) / each;
  }
  static constexpr int room(int arch, int each) {
    if (!staged(arch)) return kMostThreads / 32;
    const int limit = shared_limit(arch);
    if (Codes::copied(arch)) return early(arch, each) + (limit - kCopiesEnd - kReservedShared) / each;
    // Without copies of tables there are enough warps, and the cache is worth more than the last of them.
    const int most = Arrays::kSplitsSectors && limit > kLeavesCache ? kLeavesCache : limit;
    return (most - stages_at(arch)) / each;
  }
  static constexpr int warps_with(int arch, int each) { return warps_of_block(kRegisters, room(arch, each)); }
  static constexpr int bytes_with(int arch, int each) {
    const int stages = staged(arch) ? warps_with(arch, each) : 0;
    if (!Codes::copied(arch)) return stages_at(arch) + stages * each;
    const int late = stages > early(arch, each) ? stages - early(arch, each) : 0;
    return kCopiesEnd + kReservedShared + late * each;
  }
};

}  // namespace octavo::cuda
