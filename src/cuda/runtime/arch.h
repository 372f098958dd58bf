// Lists the features of architectures, numbered as in __CUDA_ARCH__ (900 for compute capability 9.0), and the
// number of warps that they allow. Host and device use the same functions, so that a kernel and its launch
// agree.
//
// All per-architecture branches go through kArch and the functions below. OCTAVO_CUDA_AS
// (cmake/OctavoCudaAs.cmake) emulates another architecture's branch on the local GPU, for tests of branches
// that no local GPU would use.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::cuda {

// Asynchronous copies to shared memory.
constexpr bool has_async_copies(int arch) { return arch >= 800; }
// A maximum over the lanes of a warp in one instruction.
constexpr bool joins_lanes(int arch) { return arch >= 800; }
// Conversions to bf16, an fma of bf16, and a maximum that keeps NaN.
constexpr bool has_bf16(int arch) { return arch >= 800; }
// A minimum of the magnitudes of two bf16 values.
constexpr bool has_bf16_minimum(int arch) { return arch >= 860; }
// Maxima of both halves of a word in one instruction.
constexpr bool has_half_maxima(int arch) { return arch >= 900; }
constexpr bool converts_fp8(int arch) { return arch >= 890; }
// Returns the bytes of shared memory that a block may request.
constexpr int shared_limit(int arch) {
  if (arch >= 900 && arch < 1200) return 227 * 1024;
  if (arch == 800 || arch == 870) return 163 * 1024;
  return (arch >= 860 ? 99 : 64) * 1024;
}
// Returns true if shared memory has space for a copy of the decoding tables per lane: 64 KB at a multiple of
// 64 KB, and stages before and after them.
constexpr bool has_large_shared(int arch) { return shared_limit(arch) >= 160 * 1024; }

// The schedulers of a multiprocessor, in every architecture since 7.0. Each has its own part of the
// registers.
inline constexpr int kSchedulers = 4;
inline constexpr int kSchedulerRegisters = 16 * 1024;
inline constexpr int kMostThreads = 1024;  // threads of a block; a multiprocessor runs at least this number

// Neighbouring elements that a lane loads, computes and stores together.
inline constexpr int kChunk = 8;

// Returns the number of warps in the block of a step. A multiprocessor runs one such block, so that its
// tables are stored once. The block has the largest number of warps that fits into shared memory (`room`) and
// into the registers, because a spilled value costs more than a warp gains. A multiprocessor distributes
// warps over its schedulers. If each scheduler gets three or more, all get the same number, as was measured
// on an H200; with fewer, every warp counts, because they hide too little of each other's latency. Warps
// request work when they are done, so none waits for another.
constexpr int warps_of_block(int registers, int room) {
  constexpr int kEvenFrom = 3 * kSchedulers;
  int warps = kSchedulers * (kSchedulerRegisters / (32 * registers));
  if (warps > kMostThreads / 32) warps = kMostThreads / 32;
  if (warps > room) warps = room;
  return warps < kEvenFrom ? warps : warps / kSchedulers * kSchedulers;
}

// Returns true if code for `own` can use the branch of `other`: it has the instructions and the shared
// memory.
constexpr bool can_go_as(int own, int other) {
  return (has_async_copies(own) || !has_async_copies(other)) && (joins_lanes(own) || !joins_lanes(other)) &&
         (has_bf16(own) || !has_bf16(other)) && (has_bf16_minimum(own) || !has_bf16_minimum(other)) &&
         (converts_fp8(own) || !converts_fp8(other)) && shared_limit(own) >= shared_limit(other);
}

// The architecture that a build emulates; 0 is that of its code.
#if defined(OCTAVO_CUDA_AS)
inline constexpr int kGoesAs = OCTAVO_CUDA_AS;
#else
inline constexpr int kGoesAs = 0;
#endif

#if defined(__CUDA_ARCH__)
inline constexpr int kArch = kGoesAs != 0 ? kGoesAs : __CUDA_ARCH__;
static_assert(can_go_as(__CUDA_ARCH__, kArch),
              "OCTAVO_CUDA_AS names an architecture with instructions or shared memory that this one lacks");
#else
inline constexpr int kArch = 0;  // the host's compilation of a CUDA source
#endif

}  // namespace octavo::cuda
