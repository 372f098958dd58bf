// Fills an implementation's table from the lists: every algorithm with every format.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/block_codec.h"
#include "cpu/norm_kernel.h"
#include "cpu/step_kernel.h"

namespace octavo::cpu {

template <class L, class Algo, class... Codec>
constexpr void fill_steps(StepFn* row, TypeList<Codec...>) {
  ((*row++ = &TileStep<L, Algo, Codec>::run), ...);
}

template <class L, class... Algo, class... Codec>
constexpr Kernels make_kernels(const char* name, const char* description, TypeList<Algo...>,
                               TypeList<Codec...>) {
  Kernels k{};
  k.name = name;
  k.description = description;
  auto* row = k.step;
  (fill_steps<L, Algo>(*row++, TypeList<Codec...>{}), ...);
  std::size_t i = 0;
  ((k.encode[i][0] = &encode_run<L, Codec, Moment::first>,
    k.encode[i][1] = &encode_run<L, Codec, Moment::second>,
    k.decode[i][0] = &decode_run<L, Codec, Moment::first>,
    k.decode[i][1] = &decode_run<L, Codec, Moment::second>, ++i),
   ...);
  k.norm = &norm_chunk<L>;
  return k;
}

template <class L>
constexpr Kernels make_kernels(const char* name, const char* description) {
  return make_kernels<L>(name, description, Algorithms{}, Formats{});
}

}  // namespace octavo::cpu
