// The two lists a newcomer edits: one line adds a state format, one line adds an algorithm.
// The order of formats is that of octavo::StateFormat.
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/fp8.h"
#include "codecs/int4.h"
#include "codecs/int8.h"
#include "codecs/plain.h"
#include "formula/adamw.h"
#include "formula/lion.h"
#include "formula/sgd.h"

#include <cstddef>
#include <utility>

namespace octavo {

template <class... T>
struct TypeList {
  static constexpr std::size_t kSize = sizeof...(T);
};

using Formats = TypeList<codecs::Fp32, codecs::Bf16, codecs::Int8, codecs::Int4, codecs::Int4Rank1,
                         codecs::E4M3, codecs::E5M2>;

using Algorithms =
    TypeList<formula::Adam, formula::AmsGrad, formula::Sgd, formula::SgdMomentum, formula::Lion>;

// Calls f with a value of each type in turn.
template <class... T, class Fn>
constexpr void for_each_type(TypeList<T...>, Fn&& f) {
  (f(T{}), ...);
}

// f(T{}) for the i-th type of the list. REQUIRES: i < kSize, and one return type for all.
template <class First, class... Rest, class Fn>
constexpr auto at_index(TypeList<First, Rest...>, std::size_t i, Fn&& f) {
  if constexpr (sizeof...(Rest) == 0) {
    return f(First{});
  } else {
    return i == 0 ? f(First{}) : at_index(TypeList<Rest...>{}, i - 1, std::forward<Fn>(f));
  }
}

}  // namespace octavo
