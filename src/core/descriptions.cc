// Gives the formulas' descriptions through the public functions.
// SPDX-License-Identifier: MIT
#include "core/descriptions.h"

#include <cstring>
#include <type_traits>

namespace octavo {

// CMake compiles the CUDA kernels of each rule in its own list, which must be equal to this one.
static_assert(
    std::is_same_v<Algorithms, TypeList<OCTAVO_RULES>>,
    "the rules of Families in core/builtin_registry.h and of ExtraFamilies in OCTAVO_EXTRA_LISTS must be "
    "OCTAVO_RULES in src/CMakeLists.txt and the CMake option OCTAVO_EXTRA_RULES, in the same order");

namespace {

constexpr auto kInfos = [] {
  std::array<AlgorithmInfo, kAlgorithmEntries.size()> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = kAlgorithmEntries[i].info;
  return out;
}();
constexpr auto kNumbers = [] {
  std::array<Algorithm, kAlgorithmEntries.size()> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = kAlgorithmEntries[i].info.number;
  return out;
}();

}  // namespace

std::string_view text(Range range) {
  switch (range) {
    case Range::any:
      return "a finite number";
    case Range::non_negative:
      return "a finite number of at least 0";
    case Range::positive:
      return "a finite number above 0";
    case Range::fraction:
      return "at least 0 and below 1";
    case Range::flag:
      return "true or false";
  }
  return "unknown";
}

std::span<const AlgorithmInfo> algorithms() { return kInfos; }

const AlgorithmInfo* describe(Algorithm algorithm) {
  const AlgorithmEntry* entry = find_entry(algorithm);
  return entry == nullptr ? nullptr : &entry->info;
}

int family_of(Algorithm algorithm) {
  const AlgorithmEntry* entry = find_entry(algorithm);
  return entry == nullptr ? -1 : static_cast<int>(entry->family);
}

std::size_t rule_index(Algorithm algorithm, std::uint32_t switches) {
  const AlgorithmEntry* entry = find_entry(algorithm);
  if (entry == nullptr) return Algorithms::kSize;
  for (std::size_t i = entry->first_rule; i < entry->first_rule + entry->rules; ++i) {
    if (kRuleFacts[i].switches == switches) return i;
  }
  return Algorithms::kSize;
}

std::span<const Slot> slots(Algorithm algorithm, std::uint32_t switches) {
  const std::size_t rule = rule_index(algorithm, switches);
  if (rule >= Algorithms::kSize) return {};
  return std::span(kRuleFacts[rule].state).first(static_cast<std::size_t>(kRuleFacts[rule].slots));
}

int passes(Algorithm algorithm, std::uint32_t switches) {
  const std::size_t rule = rule_index(algorithm, switches);
  return rule < Algorithms::kSize ? kRuleFacts[rule].passes : 0;
}

int switch_bit(Algorithm algorithm, std::string_view option) {
  const AlgorithmInfo* info = describe(algorithm);
  if (info == nullptr) return -1;
  int bit = 0;
  for (const Option& each : info->options) {
    if (!each.switches) continue;
    if (each.name == option) return bit;
    ++bit;
  }
  return -1;
}

std::uint32_t switches_of(const GroupConfig& config) {
  std::uint32_t out = config.switches;
  const auto add = [&](std::string_view option, bool on) {
    const int bit = switch_bit(config.algorithm, option);
    if (on && bit >= 0) out |= 1U << bit;
  };
  add("amsgrad", config.amsgrad);
  add("momentum", config.momentum);
  return out;
}

double get(const HyperParams& hyper, const Option& option) {
  if (option.at < 0) return 0.0;
  const auto* at = reinterpret_cast<const std::byte*>(&hyper) + option.at;
  if (option.range == Range::flag) return *reinterpret_cast<const bool*>(at) ? 1.0 : 0.0;
  double value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void set(HyperParams& hyper, const Option& option, double value) {
  if (option.at < 0) return;
  auto* at = reinterpret_cast<std::byte*>(&hyper) + option.at;
  if (option.range == Range::flag) {
    *reinterpret_cast<bool*>(at) = value != 0.0;
  } else {
    std::memcpy(at, &value, sizeof value);
  }
}

HyperParams defaults(Algorithm algorithm) {
  HyperParams hyper;
  if (const AlgorithmInfo* info = describe(algorithm)) {
    for (const Option& option : info->options) set(hyper, option, option.value);
  }
  return hyper;
}

std::string conflict(Algorithm algorithm, const HyperParams& hyper) {
  const AlgorithmEntry* entry = find_entry(algorithm);
  if (entry == nullptr) return {};
  return at_index(Families{}, entry->family, [&](auto family) -> std::string {
    using Family = decltype(family);
    if constexpr (requires { Family::conflict(hyper); }) return Family::conflict(hyper);
    return {};
  });
}

std::string_view name(Algorithm value) {
  const AlgorithmInfo* info = describe(value);
  return info == nullptr ? "unknown" : info->name;
}

std::span<const Algorithm> all_algorithms() { return kNumbers; }

Result<Algorithm> parse_algorithm(std::string_view text) {
  std::string known;
  for (const AlgorithmInfo& info : kInfos) {
    if (text == info.name) return info.number;
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  return Status::invalid("[octavo] optimizer: got '" + std::string(text) + "', expected one of " + known);
}

}  // namespace octavo
