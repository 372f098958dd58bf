// Fills an implementation's table from the registries: every algorithm with every format.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/add_kernel.h"
#include "cpu/block_codec.h"
#include "cpu/dropout_kernel.h"
#include "cpu/norm_kernel.h"
#include "cpu/step_kernel.h"

namespace octavo::cpu {

template <class L, class Algo, class... Format>
constexpr void fill_steps(StepFn* row, TypeList<Format...>) {
  ((*row++ = &TileStep<L, Algo, FormatForRule<Algo, Format>>::run), ...);
}

template <class L, class Format, Moment kMoment>
constexpr void fill_codec(EncodeFn* encode, DecodeFn* decode) {
  using Codec = typename Format::template Codec<kMoment>;
  encode[static_cast<std::size_t>(kMoment)] = &encode_run<L, Codec, kMoment>;
  decode[static_cast<std::size_t>(kMoment)] = &decode_run<L, Codec, kMoment>;
}

template <class L, class... Algo, class... Format>
constexpr Kernels make_kernels(const char* name, const char* description, TypeList<Algo...>,
                               TypeList<Format...>) {
  Kernels k{};
  k.name = name;
  k.description = description;
  auto* row = k.step;
  (fill_steps<L, Algo>(*row++, TypeList<Format...>{}), ...);
  std::size_t i = 0;
  ((fill_codec<L, Format, Moment::first>(k.encode[i], k.decode[i]),
    fill_codec<L, Format, Moment::second>(k.encode[i], k.decode[i]), ++i),
   ...);
  k.norm = &norm_chunk<L>;
  k.drop = &drop_run<L>;
  k.add = &add_run<L>;
  return k;
}

template <class L>
constexpr Kernels make_kernels(const char* name, const char* description) {
  return make_kernels<L>(name, description, Algorithms{}, Formats{});
}

}  // namespace octavo::cpu
