// Compiles, without running them, some kernels for architectures that a build for one GPU omits, so that a
// change that breaks them is detected: one for each of the tables, conversions and stores that differ.
// SPDX-License-Identifier: MIT
#include "cuda/step/kernel_row.cuh"

namespace octavo::cuda {

using formula::Adam;
template __global__ void step_kernel<Adam, Format<codecs::Fp32>, WeightKind::f32>(const StepParams);
template __global__ void step_kernel<Adam, Format<codecs::Int8>, WeightKind::half>(const StepParams);
template __global__ void step_kernel<Adam, Format<codecs::Int4>, WeightKind::residual8>(const StepParams);
template __global__ void step_kernel<Adam, Format<codecs::E4M3>, WeightKind::stochastic>(const StepParams);

}  // namespace octavo::cuda
