// SPDX-License-Identifier: MIT
#include "cuda/step_kernels.cuh"

namespace octavo::cuda {
const KernelRow& sgd_momentum_kernels() {
  static const KernelRow row = make_row<formula::SgdMomentum>(Formats{});
  return row;
}
}  // namespace octavo::cuda
