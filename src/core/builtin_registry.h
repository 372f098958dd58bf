// The registries of state formats and algorithms. One line adds a state format, and one line adds a family of
// algorithms, whose rules are also listed in OCTAVO_RULES in src/CMakeLists.txt (core/descriptions.cc
// compares both). A format's number is its position in the list; octavo::StateFormat names the built-in ones.
// A build can add a header with more formats and families (OCTAVO_EXTRA_LISTS).
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/format.h"
#include "codecs/fp8.h"
#include "codecs/int4.h"
#include "codecs/int8.h"
#include "codecs/plain.h"
#include "codecs/small_float.h"
#include "formula/adagrad.h"
#include "formula/adamw.h"
#include "formula/ademamix.h"
#include "formula/lamb.h"
#include "formula/lars.h"
#include "formula/lion.h"
#include "formula/rmsprop.h"
#include "formula/sgd.h"

#include <cstddef>
#include <utility>

#if defined(OCTAVO_EXTRA_LISTS)
#include OCTAVO_EXTRA_LISTS
#else
namespace octavo {
using ExtraFormats = TypeList<>;
using ExtraFamilies = TypeList<>;
}  // namespace octavo
#endif

namespace octavo {

template <class... Lists>
struct Joined;
template <class... T>
struct Joined<TypeList<T...>> {
  using Type = TypeList<T...>;
};
template <class... A, class... B, class... Rest>
struct Joined<TypeList<A...>, TypeList<B...>, Rest...> {
  using Type = typename Joined<TypeList<A..., B...>, Rest...>::Type;
};

using Formats =
    Joined<TypeList<Format<codecs::Fp32>, Format<codecs::Bf16>, Format<codecs::Int8>, Format<codecs::Int4>,
                    Format<codecs::Int4, codecs::Int4Rank1>, Format<codecs::E4M3>, Format<codecs::E5M2>,
                    Format<codecs::Int4, codecs::Int8>, Format<codecs::Fp4, codecs::SecondOf<codecs::Fp4>>,
                    Format<codecs::Fp3, codecs::SecondOf<codecs::Fp3>>>,
           ExtraFormats>::Type;

using Families = Joined<
    TypeList<formula::AdamFamily, formula::SgdFamily, formula::LionFamily, formula::RmsPropFamily,
             formula::AdagradFamily, formula::AdEmaMixFamily, formula::LarsFamily, formula::LambFamily>,
    ExtraFamilies>::Type;

// The rules of all families in order. Each of them gets its own kernels.
template <class>
struct RulesOf;
template <class... Family>
struct RulesOf<TypeList<Family...>> {
  using Type = typename Joined<TypeList<>, typename Family::Rules...>::Type;
};
using Algorithms = RulesOf<Families>::Type;

// The format as a rule of update uses it: a rule without second moments uses only the codec of the first
// moments, and the other way round. So formats that do not differ for a rule share their kernels.
template <class Rule>
constexpr bool has_moment(Moment moment) {
  for (int k = 0; k < Rule::kSlots; ++k) {
    if (Rule::kMoments[static_cast<std::size_t>(k)] == moment) return true;
  }
  return false;
}
template <class Rule, class F>
using FormatForRule =
    std::conditional_t<!has_moment<Rule>(Moment::second), Format<typename F::template Codec<Moment::first>>,
                       std::conditional_t<!has_moment<Rule>(Moment::first),
                                          Format<typename F::template Codec<Moment::second>>, F>>;

// Calls f with a value of each type in turn.
template <class... T, class Fn>
constexpr void for_each_type(TypeList<T...>, Fn&& f) {
  (f(T{}), ...);
}

// Calls f(T{}) for the i-th type of the list. REQUIRES: i < kSize, and one return type for all.
template <class First, class... Rest, class Fn>
constexpr auto at_index(TypeList<First, Rest...>, std::size_t i, Fn&& f) {
  if constexpr (sizeof...(Rest) == 0) {
    return f(First{});
  } else {
    return i == 0 ? f(First{}) : at_index(TypeList<Rest...>{}, i - 1, std::forward<Fn>(f));
  }
}

}  // namespace octavo
