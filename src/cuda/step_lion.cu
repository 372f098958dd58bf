// SPDX-License-Identifier: MIT
#include "cuda/step_kernels.cuh"

namespace octavo::cuda {
const KernelRow& lion_kernels() {
  static const KernelRow row = make_row<formula::Lion>(Formats{});
  return row;
}
}  // namespace octavo::cuda
