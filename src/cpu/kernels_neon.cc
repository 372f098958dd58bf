// The NEON kernels: 4 lanes of AArch64 Advanced SIMD. This file is compiled with the flags of its instruction
// set (src/CMakeLists.txt) and runs only on a CPU that has it.
// SPDX-License-Identifier: MIT
#define OCTAVO_LANE neon
#include "lane/simd.h"

#include "cpu/kernel_table.h"

#if HWY_TARGET != HWY_NEON
#error "this file must be compiled for HWY_NEON: check its flags in src/CMakeLists.txt"
#endif

namespace octavo::cpu {
extern const Kernels kNeonKernels;
constinit const Kernels kNeonKernels = make_kernels<neon::Lane>("neon", "4 lanes, AArch64 Advanced SIMD");
}  // namespace octavo::cpu
