// The kernels of one rule of update. CMake compiles this source once for each rule of its list, in a separate
// target that defines OCTAVO_RULE (cmake/OctavoRules.cmake).
// SPDX-License-Identifier: MIT
#include "cuda/step/kernel_row.cuh"

namespace octavo::cuda {
template const KernelRow& kernel_row<formula::OCTAVO_RULE>();
}  // namespace octavo::cuda
