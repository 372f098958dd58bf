// Computes keys and values of the algorithms' options, and checks them; see options.h.
// SPDX-License-Identifier: MIT
#include "train/config/options.h"

#include "train/config/config.h"
#include "train/config/recipe.h"
#include "train/config/schema.h"

#include <octavo/engine.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
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

// Returns the trainer's default of a key as YAML; "null" if each algorithm has its own default.
std::string_view key_default(std::string_view option) {
  const Known* const known = find_known(option);
  return known == nullptr ? "null" : known->fallback;
}

// Returns the value of an option that the config does not set. The trainer's default of 0.9 for momentum
// applies to algorithms that keep no states without momentum. If an algorithm has other moments, momentum is
// off unless it is set.
double option_default(octavo::Algorithm algorithm, const octavo::Option& option) {
  const bool has_trainer_default =
      option.name == kDecay ||
      (option.name == kMomentum && (!option.switches || slots(algorithm, 0).empty()));
  return has_trainer_default ? parse_number<double>(key_default(option.name)).value_or(option.value)
                             : option.value;
}

// Returns the keys of the algorithm's options: "learning_rate, beta1, beta2".
std::string option_names(octavo::Algorithm algorithm) {
  return joined(options_of(algorithm), ", ", [](const octavo::Option& option) {
    return option.name == kRate ? "learning_rate" : std::string_view(option.name);
  });
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
  return joined(groups, "; ", [](const auto& group) { return group.second + " " + group.first; });
}

std::string names_with(const auto& has) {
  std::vector<std::string_view> names;
  for (const octavo::AlgorithmInfo& info : octavo::algorithms())
    if (has(info)) names.push_back(info.name);
  return joined(names, ", ");
}

std::string decay_meaning() {
  const auto names = [](octavo::Decay decay) {
    return names_with([&](const octavo::AlgorithmInfo& info) {
      return info.decay == decay && find_option(info.number, kDecay) != nullptr;
    });
  };
  return fmt::format(
      "{}: how far weights shrink per step, as a multiple of the learning rate; {}: added to the gradient as "
      "a multiple of the weight",
      names(octavo::Decay::decoupled), names(octavo::Decay::coupled));
}

std::string meaning_of(std::string_view name) {
  if (name == kDecay) return decay_meaning();
  const Known* const known = find_known(name);
  const std::string algorithms = names_with(
      [&](const octavo::AlgorithmInfo& info) { return find_option(info.number, name) != nullptr; });
  const std::string_view usual = key_default(name);
  const std::string defaults = defaults_text(name, usual);
  const std::string what =
      known == nullptr ? "an option of " + algorithms : fmt::format("{} ({})", known->meaning, algorithms);
  return what + (defaults.empty() ? "" : (usual == "null" ? "; null: " : "; default with ") + defaults);
}

// Returns a range that contains every algorithm's range. The algorithm's own range is checked when the
// optimizer is known.
Range range_of(std::string_view name) {
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

constexpr std::string_view kOptimizerKey = "training.optimizer";
constexpr std::string_view kGroupsKey = "training.groups";

struct RequestedOptimizer {
  std::string_view key;
  OptimizerName optimizer;
};

// Returns the optimizer, and the fallback if there is one.
std::vector<RequestedOptimizer> requested_optimizers(const TrainingSettings& training) {
  std::vector<RequestedOptimizer> out = {{kOptimizerKey, training.optimizer}};
  if (training.optimizer_fallback)
    out.push_back({"training.optimizer_fallback", *training.optimizer_fallback});
  return out;
}

// Sets a key that was not given from the trainer's default to null, if an algorithm that has the option has
// another default.
void use_algorithm_default(const Key& key, Config& config) {
  const std::string_view name = key.setting()->option;
  TrainingSettings& training = config.settings.training;
  const auto value = training.options.find(name);
  if (value == training.options.end()) return;
  for (const RequestedOptimizer& requested : requested_optimizers(training)) {
    const octavo::Option* const option = find_option(requested.optimizer.algorithm, name);
    if (option != nullptr && option_default(requested.optimizer.algorithm, *option) != value->second) {
      training.options.erase(value);
      return;
    }
  }
}

// Handles a given option that neither the optimizer nor the fallback has. The key's default value is
// accepted. A value that is given below the optimizer's level (in the file, if the command line names another
// optimizer) is dropped. Any other value is an error.
Status settle_foreign_option(const Key& key, Config& config) {
  Origin& origin = config.origin(key.path);
  const Origin& optimizer = config.origin(kOptimizerKey);
  const octavo::Algorithm algorithm = config.settings.training.optimizer.algorithm;
  const std::string value = config.value(key.path);
  if (value == key.setting()->fallback || value == "null") return {};
  if (origin.level >= optimizer.level) {
    return invalid_error(
        "{}: {}: got {}, but {} is {} ({}), which does not have it; the options of {} are {}", origin.where(),
        key.path, value, kOptimizerKey, config.value(kOptimizerKey), optimizer.where(),
        octavo::name(algorithm), option_names(algorithm));
  }
  RETURN_IF_ERROR(set_value(key, key.setting()->fallback, config.settings));
  origin = {};
  return {};
}

// Returns the core's error about ranges or incompatible options; empty if there is none. An engine without
// tensors checks them.
std::string core_error(const octavo::GroupConfig& config, const octavo::HyperParams& hyper) {
  auto options = octavo::make<octavo_step_args>();
  options.nesterov = hyper.nesterov ? 1 : 0;
  options.maximize = hyper.maximize ? 1 : 0;
  options.decay = static_cast<std::uint32_t>(hyper.decay);
  options.lr = hyper.lr;
  options.beta1 = hyper.beta1;
  options.beta2 = hyper.beta2;
  options.eps = hyper.eps;
  options.weight_decay = hyper.weight_decay;
  options.momentum = hyper.momentum;
  options.dampening = hyper.dampening;
  std::ranges::copy(hyper.own, options.own);
  try {
    octavo::Engine(static_cast<std::uint32_t>(config.algorithm)).set_group(0, config.switches, options);
  } catch (const octavo::EngineError& error) {
    return error.what();
  }
  return {};
}

// Runs the core's checks of ranges and of incompatible options.
Status check_values(const RequestedOptimizer& requested, const Config& config) {
  const TrainingSettings& training = config.settings.training;
  const octavo::Algorithm algorithm = requested.optimizer.algorithm;
  std::string message = core_error(group_config(training, algorithm), hyper_params(training, algorithm));
  if (message.empty()) return {};
  // The core's message is "[algorithm] option: got 5, expected …". The error names the option's key instead.
  if (const auto tag = message.find("] "); tag != std::string::npos) message = message.substr(tag + 2);
  std::string option = message.substr(0, std::min(message.find(':'), message.size()));
  if (const auto got = message.find(": got "); got != std::string::npos) {
    double value = 0;
    std::from_chars(message.data() + got + 6, message.data() + message.size(), value);
    if (std::isfinite(value) && std::abs(value) > double{std::numeric_limits<float>::max()}) {
      constexpr std::string_view kAnyFinite = "a finite number of at least 0";
      if (message.ends_with(kAnyFinite))
        message.replace(message.size() - kAnyFinite.size(), kAnyFinite.size(),
                        "a number from 0 to 3.4e38 (stored as a 32-bit float)");
      else
        message += ", at most 3.4e38 (stored as a 32-bit float)";
    }
  }
  const std::string path = "training." + (option == kRate ? "learning_rate" : option);
  const bool has_key = config.schema->index(path) != kNoKey;
  const std::string_view blamed = has_key ? path : requested.key;
  return invalid_error("{}: {}{} ({})", config.origin(blamed).where(), blamed,
                       has_key ? message.substr(option.size()) : ": " + message,
                       octavo::name(requested.optimizer.algorithm));
}

// Checks that the optimizer's algorithm supports its state format. `what` is the part of `key` that names the
// optimizer.
Status check_format(const std::string& what, std::string_view key, const OptimizerName& optimizer,
                    const Config& config) {
  const octavo::AlgorithmInfo& info = *describe(optimizer.algorithm);
  const auto excluded = [&](octavo::StateFormat format) {
    const auto number = static_cast<std::uint32_t>(format);  // formats outside the mask have larger numbers
    return number < 32 && ((info.excluded_formats >> number) & 1U) != 0;
  };
  if (!excluded(optimizer.state)) return {};
  std::vector<std::string_view> supported;
  for (const octavo::StateFormat format : octavo::all_state_formats())
    if (!excluded(format)) supported.push_back(octavo::name(format));
  return unsupported_error("{}: {}: {} has no {} states; it supports {}", config.origin(key).where(), what,
                           info.name, octavo::name(optimizer.state), joined(supported, ", "));
}

// Checks that the optimizer supports the settings of the parameter groups. (A fallback has fp32 states
// everywhere.)
Status check_groups(const Config& config) {
  const octavo::Algorithm algorithm = config.settings.training.optimizer.algorithm;
  const std::vector<GroupSettings>& groups = config.settings.training.groups;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string key = fmt::format("{}[{}]", kGroupsKey, i);
    if (groups[i].weight_decay && find_option(algorithm, recipe::kDecay) == nullptr)
      return invalid_error("{}: {}.weight_decay: {} has no weight decay; remove it",
                           config.origin(kGroupsKey).where(), key, octavo::name(algorithm));
    if (!groups[i].state) continue;
    RETURN_IF_ERROR(check_format(key + ".state", kGroupsKey, {algorithm, *groups[i].state}, config));
  }
  return {};
}

}  // namespace

const octavo::Option* find_option(octavo::Algorithm algorithm, std::string_view name) {
  const auto options = options_of(algorithm);
  const auto found = std::ranges::find(options, name, &octavo::Option::name);
  return found == options.end() ? nullptr : &*found;
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

Status settle_options(Config& config) {
  for (const Key& key : config.schema->keys()) {
    if (key.setting() == nullptr || key.setting()->option.empty()) continue;
    const std::vector<RequestedOptimizer> requested = requested_optimizers(config.settings.training);
    const bool has = std::ranges::any_of(requested, [&](const RequestedOptimizer& each) {
      return find_option(each.optimizer.algorithm, key.setting()->option) != nullptr;
    });
    if (config.origin(key.path).level == Origin::Level::standard) {
      if (config.origin(key.path).via != kByRecipe) use_algorithm_default(key, config);
    } else if (!has) {
      RETURN_IF_ERROR(settle_foreign_option(key, config));
    }
  }
  for (const RequestedOptimizer& requested : requested_optimizers(config.settings.training)) {
    RETURN_IF_ERROR(check_format(std::string(requested.key), requested.key, requested.optimizer, config));
    RETURN_IF_ERROR(check_values(requested, config));
  }
  return check_groups(config);
}

}  // namespace octavo_train
