// SPDX-License-Identifier: MIT
#include "cuda/step_kernels.cuh"

namespace octavo::cuda {
const KernelRow& adam_kernels() {
  static const KernelRow row = make_row<formula::Adam>(Formats{});
  return row;
}
}  // namespace octavo::cuda
