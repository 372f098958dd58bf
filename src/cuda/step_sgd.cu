// SPDX-License-Identifier: MIT
#include "cuda/step_kernels.cuh"

namespace octavo::cuda {
const KernelRow& sgd_kernels() {
  static const KernelRow row = make_row<formula::Sgd>(Formats{});
  return row;
}
}  // namespace octavo::cuda
