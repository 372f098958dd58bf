// The AVX-512 kernels: 16 lanes, with F, BW, CD, DQ and VL. This file is compiled with the flags of its
// instruction set (src/CMakeLists.txt) and runs only on a CPU that has it.
// SPDX-License-Identifier: MIT
#define OCTAVO_LANE avx512
#include "lane/simd.h"

#include "cpu/kernel_table.h"

#if HWY_TARGET != HWY_AVX3
#error "this file must be compiled for HWY_AVX3: check its flags in src/CMakeLists.txt"
#endif

namespace octavo::cpu {
extern const Kernels kAvx512Kernels;
constinit const Kernels kAvx512Kernels =
    make_kernels<avx512::Lane>("avx512", "16 lanes, AVX-512 F, BW, CD, DQ and VL");
}  // namespace octavo::cpu
