// Compiles Triad and 6bit for a GPU without running them. A build with OCTAVO_EXTRA_LISTS compiles Triad for
// every format and kind of weight (cmake/OctavoRules.cmake). Two are enough to check that both headers
// compile for a GPU: 6bit is processed element by element, 8bit by vectors.
// SPDX-License-Identifier: MIT
#include "cuda/step/kernel_row.cuh"

namespace octavo::cuda {
template StepKernel one_kernel<formula::Triad, Format<codecs::Linear6>, WeightKind::f32>();
template StepKernel one_kernel<formula::Triad, Format<codecs::Int8>, WeightKind::half>();
}  // namespace octavo::cuda
