// Fills a rule's row of kernels: every format with every kind of weight.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/rank1/find_maxima.cuh"
#include "cuda/rank1/panel_step.cuh"
#include "cuda/step/kernels.h"
#include "cuda/step/step_kernel.cuh"

#include <array>

namespace octavo::cuda {

template <class Algo, class Format, WeightKind kKind>
StepKernel one_kernel() {
  using Map = typename Step<Algo, Format, kKind>::Map;
  StepKernel out{reinterpret_cast<const void*>(&step_kernel<Algo, Format, kKind>),
                 &Map::bytes,
                 &Map::threads,
                 &Map::start,
                 Step<Algo, Format, kKind>::kHasQuick,
                 kGoesAs,
                 Format::kDefaultBlock,
                 Step<Algo, Format, kKind>::kTogether};
  // The rounding of weights does not matter to kernels that only read them.
  [[maybe_unused]] constexpr WeightKind kRead = kKind == WeightKind::stochastic ? WeightKind::half : kKind;
  if constexpr (formula::kHasTrustRatio<Algo>) {
    out.trust_ratio = reinterpret_cast<const void*>(&trust_ratio_kernel<Algo, Format, kRead>);
  }
  if constexpr (Format::kRank1) {
    using First = Rank1Pass<Algo, Format, kRead>;
    static const StepKernel rank1{reinterpret_cast<const void*>(&rank1_kernel<Algo, Format, kRead>),
                                  &First::bytes,
                                  &First::threads,
                                  &First::start,
                                  true,
                                  kGoesAs};
    out.rank1 = &rank1;
    if constexpr (Step<Algo, Format, kKind>::kHasQuick) {
      using Panels = typename PanelStep<Algo, Format, kKind>::Map;
      static const StepKernel panels{reinterpret_cast<const void*>(&panel_kernel<Algo, Format, kKind>),
                                     &Panels::bytes,
                                     &Panels::threads,
                                     &Panels::start,
                                     true,
                                     kGoesAs};
      out.panels = &panels;
    }
  }
  return out;
}
template <class Algo, class Format>
std::array<StepKernel, kWeightKinds> kernels_of_format() {
  return {one_kernel<Algo, Format, WeightKind::f32>(), one_kernel<Algo, Format, WeightKind::half>(),
          one_kernel<Algo, Format, WeightKind::stochastic>(),
          one_kernel<Algo, Format, WeightKind::residual8>(),
          one_kernel<Algo, Format, WeightKind::residual16>()};
}

template <class Algo, class... Format>
KernelRow make_row(TypeList<Format...>) {
  if constexpr (Algo::kSlots == 0) {
    KernelRow row;
    row.fill(
        kernels_of_format<Algo, octavo::Format<codecs::Fp32>>());  // a rule without states has no formats
    return row;
  } else {
    return {kernels_of_format<Algo, FormatForRule<Algo, Format>>()...};
  }
}

template <class Rule>
const KernelRow& kernel_row() {
  static const KernelRow row = make_row<Rule>(Formats{});
  return row;
}

}  // namespace octavo::cuda
