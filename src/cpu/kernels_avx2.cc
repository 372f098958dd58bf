// The AVX2 kernels: 8 lanes, with FMA. This file is compiled with the flags of its instruction set
// (src/CMakeLists.txt) and runs only on a CPU that has it.
// SPDX-License-Identifier: MIT
#define OCTAVO_LANE avx2
#include "lane/simd.h"

#include "cpu/kernel_table.h"

#if HWY_TARGET != HWY_AVX2
#error "this file must be compiled for HWY_AVX2: check its flags in src/CMakeLists.txt"
#endif

namespace octavo::cpu {
extern const Kernels kAvx2Kernels;
constinit const Kernels kAvx2Kernels = make_kernels<avx2::Lane>("avx2", "8 lanes, AVX2 with FMA");
}  // namespace octavo::cpu
