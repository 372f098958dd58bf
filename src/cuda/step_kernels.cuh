// Fills a rule's row of kernels: every format with every kind of weight.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/kernels.h"
#include "cuda/step_kernel.cuh"

#include <array>

namespace octavo::cuda {

template <class Algo, class Codec, WeightKind kKind>
StepKernel one_kernel() {
  using Map = typename Step<Algo, Codec, kKind>::Map;
  return {reinterpret_cast<const void*>(&step_kernel<Algo, Codec, kKind>), &Map::bytes, &Map::threads,
          &Map::start};
}
template <class Algo, class Codec>
std::array<StepKernel, kWeightKinds> kernels_of_format() {
  return {one_kernel<Algo, Codec, WeightKind::f32>(), one_kernel<Algo, Codec, WeightKind::half>(),
          one_kernel<Algo, Codec, WeightKind::stochastic>(), one_kernel<Algo, Codec, WeightKind::residual8>(),
          one_kernel<Algo, Codec, WeightKind::residual16>()};
}

template <class Algo, class... Codec>
KernelRow make_row(TypeList<Codec...>) {
  if constexpr (Algo::kSlots == 0) {
    KernelRow row;
    row.fill(kernels_of_format<Algo, codecs::Fp32>());  // no states, no formats
    return row;
  } else {
    return {kernels_of_format<Algo, Codec>()...};
  }
}

template <class Rule>
const KernelRow& kernel_row() {
  static const KernelRow row = make_row<Rule>(Formats{});
  return row;
}

}  // namespace octavo::cuda
