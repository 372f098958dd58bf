// The two lists a newcomer edits: one line adds a state format, one line adds a family of algorithms, whose
// rules are also in OCTAVO_RULES in src/CMakeLists.txt (core/descriptions.cc compares). A format's number
// is its place in the list: octavo::StateFormat names those that the library itself uses. A build may be
// given a header with more of both (OCTAVO_EXTRA_LISTS).
// SPDX-License-Identifier: MIT
#pragma once

#include "codecs/format.h"
#include "codecs/fp8.h"
#include "codecs/int4.h"
#include "codecs/int8.h"
#include "codecs/plain.h"
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
                    Format<codecs::Int4, codecs::Int8>>,
           ExtraFormats>::Type;

using Families = Joined<
    TypeList<formula::AdamFamily, formula::SgdFamily, formula::LionFamily, formula::RmsPropFamily,
             formula::AdagradFamily, formula::AdEmaMixFamily, formula::LarsFamily, formula::LambFamily>,
    ExtraFamilies>::Type;

// The rules of all families, one after the other: what kernels are made of.
template <class>
struct RulesOf;
template <class... Family>
struct RulesOf<TypeList<Family...>> {
  using Type = typename Joined<TypeList<>, typename Family::Rules...>::Type;
};
using Algorithms = RulesOf<Families>::Type;

// A format as far as a rule of update sees it: one whose second moments it has none of is that of the first
// moments alone, and the other way round. So formats that differ in nothing share their kernels.
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
