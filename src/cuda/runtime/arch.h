// What architectures have, by number as in __CUDA_ARCH__ (900 for compute capability 9.0), and how many warps
// that allows: the same for host and device, so that a kernel and its launch agree.
//
// Where the ways of architectures part, kArch and the questions below decide, and nothing else. So a build
// can name another architecture (OCTAVO_CUDA_AS, cmake/OctavoCudaAs.cmake): its kernels go that one's way on
// the GPU that is there, which is how tests run what no GPU at hand would take.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::cuda {

// Copies to shared memory in the background.
constexpr bool has_async_copies(int arch) { return arch >= 800; }
// A maximum over the lanes of a warp in one instruction.
constexpr bool joins_lanes(int arch) { return arch >= 800; }
// Conversions to bf16, its fma, and a maximum that keeps NaN.
constexpr bool has_bf16(int arch) { return arch >= 800; }
// A minimum of magnitudes of two bf16.
constexpr bool has_bf16_minimum(int arch) { return arch >= 860; }
// Maxima of both halves of a word in one instruction.
constexpr bool has_half_maxima(int arch) { return arch >= 900; }
constexpr bool converts_fp8(int arch) { return arch >= 890; }
// Bytes of shared memory that a block may ask for.
constexpr int shared_limit(int arch) {
  if (arch >= 900 && arch < 1200) return 227 * 1024;
  if (arch == 800 || arch == 870) return 163 * 1024;
  return (arch >= 860 ? 99 : 64) * 1024;
}
// Room in shared memory for a copy of the decoding tables per lane: 64 KB at an address that is a multiple of
// 64 KB, and stages before and behind them.
constexpr bool has_large_shared(int arch) { return shared_limit(arch) >= 160 * 1024; }

// Of a multiprocessor, in every architecture since 7.0. Each scheduler has its own part of the registers.
inline constexpr int kSchedulers = 4;
inline constexpr int kSchedulerRegisters = 16 * 1024;
inline constexpr int kMostThreads = 1024;  // of a block; a multiprocessor has room for as many at least

// Neighbouring elements that a lane loads, computes and stores together.
inline constexpr int kChunk = 8;

// How many warps the block of a step has. It has a multiprocessor to itself, so that its tables are held
// once, and as many warps as fit: `room` by shared memory, and by the registers that a thread needs, for a
// value that is spilled costs more than a warp brings. A multiprocessor shares warps out to its schedulers.
// Where each gets three or more, all get the same number, as was measured on an H200; where there are fewer,
// each one counts, for they hide too little of each other's latency as it is. Warps take work when they are
// done, so none waits for another.
constexpr int warps_of_block(int registers, int room) {
  constexpr int kEvenFrom = 3 * kSchedulers;
  int warps = kSchedulers * (kSchedulerRegisters / (32 * registers));
  if (warps > kMostThreads / 32) warps = kMostThreads / 32;
  if (warps > room) warps = room;
  return warps < kEvenFrom ? warps : warps / kSchedulers * kSchedulers;
}

// Whether code for `own` can go the way of `other`: it has the instructions and the shared memory.
constexpr bool can_go_as(int own, int other) {
  return (has_async_copies(own) || !has_async_copies(other)) && (joins_lanes(own) || !joins_lanes(other)) &&
         (has_bf16(own) || !has_bf16(other)) && (has_bf16_minimum(own) || !has_bf16_minimum(other)) &&
         (converts_fp8(own) || !converts_fp8(other)) && shared_limit(own) >= shared_limit(other);
}

// The architecture that a build goes as; 0: that of its code.
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
inline constexpr int kArch = 0;  // the host's pass over a CUDA source
#endif

}  // namespace octavo::cuda
