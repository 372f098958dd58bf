// Triad with 6bit on a GPU: compiled, not run. A build with OCTAVO_EXTRA_LISTS compiles it for every format
// and kind of weight (cmake/OctavoRules.cmake); one of each is enough to see that both headers are for a GPU.
// SPDX-License-Identifier: MIT
#include "cuda/step_kernels.cuh"

namespace octavo::cuda {
template StepKernel one_kernel<formula::Triad, Format<codecs::Linear6>, WeightKind::f32>();
}  // namespace octavo::cuda
