// Computes values and keys of the algorithms' options; see options.h.
// SPDX-License-Identifier: MIT
#include "train/config/options.h"

#include "train/config/recipe.h"
#include "train/config/schema.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

using recipe::kDecay;
using recipe::kKnown;
using recipe::kMomentum;
using recipe::Known;

constexpr std::string_view kRate = "lr";  // set by the key learning_rate, and follows the scheduler

const Known* find_known(std::string_view name) {
  const auto* const found = std::ranges::find(kKnown, name, &Known::name);
  return found == kKnown.end() ? nullptr : found;
}

std::span<const octavo::Option> options_of(octavo::Algorithm algorithm) {
  const octavo::AlgorithmInfo* const info = describe(algorithm);
  return info == nullptr ? std::span<const octavo::Option>() : info->options;
}

// Returns true if the trainer's default of 0.9 applies to an algorithm's momentum. It is meant for algorithms
// that keep no states without momentum. If an algorithm has other moments, momentum is off unless it is set.
bool wants_momentum(octavo::Algorithm algorithm, const octavo::Option& option) {
  return !option.switches || slots(algorithm, 0).empty();
}

// Returns the option's defaults by algorithm ("a, b 0.999; c 0.99"), or the only value if all algorithms
// share it. Algorithms whose default is `usual`, the key's own default, are omitted.
std::string defaults_text(std::string_view name, std::string_view usual) {
  std::vector<std::pair<std::string, std::string>> groups;  // value, names
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    const octavo::Option* const option = find_option(info.number, name);
    if (option == nullptr) continue;
    const std::string value = option_text(*option, option_default(info.number, *option));
    auto group = std::ranges::find(groups, value, [](const auto& each) { return each.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {value, ""});
    group->second += (group->second.empty() ? "" : ", ") + std::string(info.name);
  }
  std::erase_if(groups, [&](const auto& group) { return group.first == usual; });
  if (groups.size() == 1 && usual == "null") return groups.front().first;
  std::string out;
  for (const auto& [value, names] : groups) out += (out.empty() ? "" : "; ") + names + " " + value;
  return out;
}

std::string names_with(const auto& has) {
  std::string out;
  for (const octavo::AlgorithmInfo& info : octavo::algorithms())
    if (has(info)) out += (out.empty() ? "" : ", ") + std::string(info.name);
  return out;
}

std::string decay_meaning() {
  const auto names = [](octavo::Decay decay) {
    return names_with([&](const octavo::AlgorithmInfo& info) {
      return info.decay == decay && find_option(info.number, kDecay) != nullptr;
    });
  };
  return names(octavo::Decay::decoupled) +
         ": how far weights shrink per step, as a multiple of the learning rate; " +
         names(octavo::Decay::coupled) + ": added to the gradient as a multiple of the weight";
}

std::string meaning_of(std::string_view name) {
  if (name == kDecay) return decay_meaning();
  const Known* const known = find_known(name);
  const std::string who = names_with(
      [&](const octavo::AlgorithmInfo& info) { return find_option(info.number, name) != nullptr; });
  const std::string_view usual = key_default(name);
  const std::string defaults = defaults_text(name, usual);
  const std::string what = known == nullptr ? "of " + who : std::string(known->meaning) + " (" + who + ")";
  return what + (defaults.empty() ? "" : (usual == "null" ? "; null: " : "; default with ") + defaults);
}

// Returns a range that contains every algorithm's range. The algorithm's own range is checked when the
// optimizer is known.
Range range_of(std::string_view name) {
  constexpr Range kNotNegative{.low = 0}, kPositive{.low = 0, .above = true};
  constexpr Range kFraction{.low = 0, .high = 1, .below = true};
  if (const Known* known = find_known(name); known != nullptr && known->fraction) return kFraction;
  std::vector<octavo::Range> found;
  for (const octavo::AlgorithmInfo& info : octavo::algorithms())
    if (const octavo::Option* option = find_option(info.number, name)) found.push_back(option->range);
  const auto all = [&](octavo::Range range) { return std::ranges::count(found, range) == std::ssize(found); };
  if (all(octavo::Range::fraction)) return kFraction;
  if (all(octavo::Range::positive)) return kPositive;
  if (std::ranges::count(found, octavo::Range::any) == 0) return kNotNegative;
  return {.low = -std::numeric_limits<double>::infinity()};
}

bool is_flag(std::string_view name) {
  return std::ranges::all_of(octavo::algorithms(), [&](const octavo::AlgorithmInfo& info) {
    const octavo::Option* const option = find_option(info.number, name);
    return option == nullptr || option->range == octavo::Range::flag;
  });
}

// Returns a codec that stores numbers and flags as numbers: a flag is 0 or 1.
Codec<double> codec_of(std::string_view name) {
  if (!is_flag(name)) return real(range_of(name));
  auto read = [](const YamlNode& node) -> std::optional<double> {
    const std::optional<bool> on = flag().read(node);
    return on ? std::optional(*on ? 1.0 : 0.0) : std::nullopt;
  };
  return {flag().expected, read, [](const double& value) { return flag().write(value != 0.0); }};
}

Type type_of(const std::string& name) {
  Codec<double> codec = codec_of(name);
  auto set = [name, read = codec.read](const YamlNode& node, Settings& settings) {
    auto& options = settings.training.options;
    if (node.kind == YamlNode::Kind::null) return options.erase(name), true;
    const std::optional<double> value = read(node);
    if (value) options[name] = *value;
    return value.has_value();
  };
  auto show = [name, write = codec.write](const Settings& settings) {
    const auto found = settings.training.options.find(name);
    return found == settings.training.options.end() ? std::string("null") : write(found->second);
  };
  return {codec.expected + ", or null", std::move(set), std::move(show)};
}

// Returns the options of all algorithms except the learning rate: first those of kKnown, then the others in
// the order of the descriptions.
std::vector<std::string_view> all_options() {
  std::vector<std::string_view> out;
  const auto add = [&](std::string_view name) {
    const bool is_new = std::ranges::find(out, name) == out.end();
    if (is_new && name != kRate) out.push_back(name);
  };
  for (const Known& known : kKnown) add(known.name);
  for (const octavo::AlgorithmInfo& info : octavo::algorithms())
    for (const octavo::Option& option : info.options) add(option.name);
  return out;
}

}  // namespace

const octavo::Option* find_option(octavo::Algorithm algorithm, std::string_view name) {
  const auto options = options_of(algorithm);
  const auto found = std::ranges::find(options, name, &octavo::Option::name);
  return found == options.end() ? nullptr : &*found;
}

std::string_view key_default(std::string_view option) {
  const Known* const known = find_known(option);
  return known == nullptr ? "null" : known->fallback;
}

double option_default(octavo::Algorithm algorithm, const octavo::Option& option) {
  const bool recipe =
      option.name == kDecay || (option.name == kMomentum && wants_momentum(algorithm, option));
  return recipe ? parse_number<double>(key_default(option.name)).value_or(option.value) : option.value;
}

double option_value(const TrainingSettings& training, octavo::Algorithm algorithm,
                    const octavo::Option& option) {
  if (option.name == kRate) return training.learning_rate;
  const auto given = training.options.find(option.name);
  return given == training.options.end() ? option_default(algorithm, option) : given->second;
}

octavo::HyperParams hyper_params(const TrainingSettings& training, octavo::Algorithm algorithm) {
  octavo::HyperParams hyper = defaults(algorithm);
  for (const octavo::Option& option : options_of(algorithm))
    set(hyper, option, option_value(training, algorithm, option));
  return hyper;
}

octavo::GroupConfig group_config(const TrainingSettings& training, octavo::Algorithm algorithm) {
  octavo::GroupConfig config;
  config.algorithm = algorithm;
  config.momentum = false;  // set below, like the other switches
  for (const octavo::Option& option : options_of(algorithm)) {
    const bool on = option.switches && option_value(training, algorithm, option) != 0.0;
    if (on) config.switches |= 1U << octavo::switch_bit(algorithm, option.name);
  }
  return config;
}

std::string option_names(octavo::Algorithm algorithm) {
  return joined(options_of(algorithm), ", ", [](const octavo::Option& option) {
    return option.name == kRate ? "learning_rate" : std::string_view(option.name);
  });
}

std::string option_text(const octavo::Option& option, double value) {
  return option.range == octavo::Range::flag ? flag().write(value != 0.0) : real({.low = 0}).write(value);
}

std::vector<Key> option_keys() {
  static std::deque<std::string> texts;  // owns the texts that the keys' views refer to
  const auto keep = [](std::string text) -> std::string_view { return texts.emplace_back(std::move(text)); };
  std::vector<Key> out;
  for (const std::string_view name : all_options()) {
    const Known* const known = find_known(name);
    Setting setting{.type = type_of(std::string(name)), .fallback = key_default(name)};
    setting.option = name;
    setting.omit_if_null = known == nullptr;
    if (known != nullptr && !known->also.empty()) setting.also = {known->also};
    out.push_back({keep("training." + std::string(name)), std::move(setting), keep(meaning_of(name))});
  }
  return out;
}

}  // namespace octavo_train
