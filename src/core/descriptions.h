// Joins the descriptions of all families and finds the rule of update of a configuration.
// SPDX-License-Identifier: MIT
#pragma once

#include "core/builtin_registry.h"

#include <octavo/describe.h>
#include <octavo/layout.h>

#include <algorithm>
#include <array>
#include <string>

namespace octavo {

// An algorithm, and the position of its family's rules in Algorithms.
struct AlgorithmEntry {
  AlgorithmInfo info;
  std::size_t family = 0, first_rule = 0, rules = 0;
};

template <class... Family>
constexpr auto entries_of(TypeList<Family...>) {
  std::array<AlgorithmEntry, (std::size(Family::kNames) + ...)> out{};
  std::size_t at = 0;
  std::size_t family = 0;
  std::size_t first = 0;
  const auto add = [&](const auto& names, std::size_t rules) {
    for (const AlgorithmInfo& info : names) out[at++] = {info, family, first, rules};
    ++family;
    first += rules;
  };
  (add(Family::kNames, Family::Rules::kSize), ...);
  std::sort(out.begin(), out.end(),
            [](const AlgorithmEntry& a, const AlgorithmEntry& b) { return a.info.number < b.info.number; });
  return out;
}
inline constexpr auto kAlgorithmEntries = entries_of(Families{});

constexpr bool numbers_and_names_differ() {
  for (std::size_t i = 0; i < kAlgorithmEntries.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kAlgorithmEntries[i].info.number == kAlgorithmEntries[j].info.number) return false;
      if (kAlgorithmEntries[i].info.name == kAlgorithmEntries[j].info.name ||
          kAlgorithmEntries[i].info.title == kAlgorithmEntries[j].info.title)
        return false;
    }
  }
  return true;
}
static_assert(numbers_and_names_differ(), "every algorithm has a number, a name and a title of its own");

constexpr bool places_fit() {
  constexpr auto kOwn = static_cast<std::int32_t>(offsetof(HyperParams, own));
  for (const AlgorithmEntry& entry : kAlgorithmEntries) {
    for (const Option& option : entry.info.options) {
      if (option.at >= kOwn && (option.at - kOwn) / 8 >= kMaxOwn) return false;
    }
  }
  return true;
}
static_assert(places_fit(), "own_place takes 0 to kMaxOwn - 1");

constexpr const AlgorithmEntry* find_entry(Algorithm algorithm) {
  for (const AlgorithmEntry& entry : kAlgorithmEntries) {
    if (entry.info.number == algorithm) return &entry;
  }
  return nullptr;
}

// The properties of a rule that can be looked up by its index at run time.
struct RuleFacts {
  std::uint32_t switches = 0;
  int slots = 0, passes = 1;
  std::array<Slot, kMaxSlots> state{};
};
template <class... Rule>
constexpr auto facts_of(TypeList<Rule...>) {
  const auto facts = []<class R>(R) {
    RuleFacts out{R::kSwitches, R::kSlots, 1, R::kState};
    if constexpr (requires { R::kPasses; }) out.passes = R::kPasses;
    return out;
  };
  return std::array<RuleFacts, sizeof...(Rule)>{facts(Rule{})...};
}
inline constexpr auto kRuleFacts = facts_of(Algorithms{});

// Returns the switches of a configuration: its bits, and the two options that have fields of their own.
std::uint32_t switches_of(const GroupConfig& config);
// Returns the index of a rule in Algorithms, or Algorithms::kSize if the algorithm has no such rule.
std::size_t rule_index(Algorithm algorithm, std::uint32_t switches);
// Returns a message about options that the family does not allow together, without the algorithm's name, or
// "".
std::string conflict(Algorithm algorithm, const HyperParams& hyper);

}  // namespace octavo
