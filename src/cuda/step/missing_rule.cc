// Stands for rule.cu if OCTAVO_CUDA_RULES omits a rule of update: the rule has no kernels in this build, and
// prepare_kernel() reports that.
// SPDX-License-Identifier: MIT
#include "cuda/step/kernels.h"

namespace octavo::cuda {

template <>
const KernelRow& kernel_row<formula::OCTAVO_RULE>() {
  static const KernelRow row{};
  return row;
}

}  // namespace octavo::cuda
