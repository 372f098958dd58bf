// SPDX-License-Identifier: MIT
#include "cuda/step_kernels.cuh"

namespace octavo::cuda {
const KernelRow& amsgrad_kernels() {
  static const KernelRow row = make_row<formula::AmsGrad>(Formats{});
  return row;
}
}  // namespace octavo::cuda
