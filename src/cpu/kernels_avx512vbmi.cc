// The AVX-512 kernels for Ice Lake, Zen 4 and later: 16 lanes, with look-ups in tables of bytes (VBMI). This
// file is compiled with the flags of its instruction set (src/CMakeLists.txt) and runs only on a CPU that has
// it.
// SPDX-License-Identifier: MIT
#define OCTAVO_LANE avx512vbmi
#include "lane/simd.h"

#include "cpu/kernel_table.h"

#if HWY_TARGET != HWY_AVX3 || !defined(__AVX512VBMI__)
#error "this file must be compiled for HWY_AVX3 with VBMI: check its flags in src/CMakeLists.txt"
#endif

namespace octavo::cpu {
extern const Kernels kAvx512VbmiKernels;
constinit const Kernels kAvx512VbmiKernels =
    make_kernels<avx512vbmi::Lane>("avx512vbmi", "16 lanes, AVX-512 with VBMI, as since Ice Lake and Zen 4");
}  // namespace octavo::cpu
