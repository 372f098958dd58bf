// The reference implementation, for any processor.
// SPDX-License-Identifier: MIT
#include "cpu/kernel_table.h"
#include "lane/scalar.h"

namespace octavo::cpu {
extern const Kernels kScalarKernels;
constinit const Kernels kScalarKernels =
    make_kernels<scalar::Lane>("scalar", "one element at a time, tables for the 8-bit maps");
}  // namespace octavo::cpu
