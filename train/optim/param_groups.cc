// SPDX-License-Identifier: MIT
#include "train/optim/param_groups.h"

#include "train/base/numbers.h"
#include "train/config/options.h"
#include "train/config/recipe.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace octavo_train {
namespace {

constexpr std::size_t kNoGroup = static_cast<std::size_t>(-1);
constexpr std::size_t kNamesShown = 5;
constexpr const char* kGroupsKey = "training.groups";
constexpr const char* kNoDecayKey = "training.no_decay";

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool matches_one(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& each) { return matches(each, name); });
}

// Returns the smallest edit distance between `part` and any substring of `name`.
std::size_t distance_within(std::string_view part, std::string_view name) {
  std::vector<std::size_t> row(name.size() + 1, 0), above;
  for (std::size_t i = 1; i <= part.size(); ++i) {
    above = row;
    row[0] = i;
    for (std::size_t j = 1; j <= name.size(); ++j)
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (part[i - 1] == name[j - 1] ? 0 : 1)});
  }
  return *std::ranges::min_element(row);
}

// Returns the names that are most similar to a pattern, nearest first.
std::string near_names(const std::string& pattern, const NamedTensors& parameters) {
  std::string letters;
  std::ranges::copy_if(pattern, std::back_inserter(letters),
                       [](char c) { return std::string_view("*?[]").find(c) == std::string_view::npos; });
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const auto& [name, tensor] : parameters) near.emplace_back(distance_within(letters, name), name);
  std::ranges::stable_sort(near, {}, [](const auto& each) { return each.first; });
  std::string out;
  for (std::size_t i = 0; i < near.size() && i < kNamesShown; ++i)
    out += (out.empty() ? "" : ", ") + near[i].second;
  if (near.size() > kNamesShown) out += fmt::format(" (of {})", near.size());
  return out;
}

Status check_matches(const std::string& key, const std::vector<std::string>& patterns,
                     const NamedTensors& parameters) {
  for (const std::string& pattern : patterns) {
    if (std::ranges::any_of(parameters, [&](const auto& each) { return matches(pattern, each.first); }))
      continue;
    return invalid_error("{}: no parameter's name matches \"{}\"; near it are: {}", key, pattern,
                         near_names(pattern, parameters));
  }
  return {};
}

std::string group_key(std::size_t group) { return fmt::format("{}[{}]", kGroupsKey, group); }

// Returns the first group that has a pattern for the name, or kNoGroup.
std::size_t first_group(const std::vector<GroupSettings>& groups, const std::string& name) {
  const auto found =
      std::ranges::find_if(groups, [&](const GroupSettings& each) { return matches_one(each.params, name); });
  return found == groups.end() ? kNoGroup : static_cast<std::size_t>(found - groups.begin());
}

// Returns an error if a group gets no parameter because earlier groups match all of its parameters.
Status check_shadowed(const std::vector<GroupSettings>& groups, const NamedTensors& parameters) {
  std::vector<bool> used(groups.size(), false);
  for (const auto& [name, tensor] : parameters) {
    if (const std::size_t group = first_group(groups, name); group != kNoGroup) used[group] = true;
  }
  const auto unused = std::ranges::find(used, false);
  if (unused == used.end()) return {};
  return invalid_error(
      "{}.params: every parameter that it matches is in a group before it, and the first group that matches "
      "counts; move it before them, or remove it",
      group_key(static_cast<std::size_t>(unused - used.begin())));
}

bool is_spared(const NoDecay& no_decay, const std::string& name, const torch::Tensor& tensor) {
  if (no_decay.kind == NoDecay::Kind::automatic) return tensor.dim() < 2;
  return no_decay.kind == NoDecay::Kind::patterns && matches_one(no_decay.patterns, name);
}

GroupOptions own_options(const TrainingSettings& training) {
  const OptimizerName& optimizer = training.optimizer;
  const octavo::Option* const decay = find_option(optimizer.algorithm, recipe::kDecay);
  return {decay == nullptr ? 0.0 : option_value(training, optimizer.algorithm, *decay),
          training.learning_rate, optimizer.state};
}

// Adds a parameter to the group with these options.
void add(ParameterGroups& to, const GroupOptions& options, const std::pair<std::string, torch::Tensor>& one) {
  const auto same = std::ranges::find(to.options, options);
  to.group.push_back(static_cast<std::size_t>(same - to.options.begin()));
  if (same == to.options.end()) to.options.push_back(options);
  to.parameters.push_back(one);
}

constexpr double kPi = 3.14159265358979323846;

// Interpolate from `high` to `low` as `done` goes from 0 to 1.
double straight(double high, double low, double done) { return high + (low - high) * done; }
double half_cosine(double high, double low, double done) {
  return low + (high - low) * 0.5 * (1.0 + std::cos(kPi * done));
}

std::string count_text(std::int64_t tensors, std::int64_t weights) {
  return fmt::format("{} parameter{} of {} weights", tensors, tensors == 1 ? "" : "s", short_count(weights));
}

}  // namespace

std::vector<torch::Tensor> ParameterGroups::tensors_of(std::size_t wanted) const {
  std::vector<torch::Tensor> out;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (group[i] == wanted) out.push_back(parameters[i].second);
  }
  return out;
}

ParameterGroups one_group(const TrainingSettings& training, NamedTensors parameters) {
  ParameterGroups out;
  out.options = {own_options(training)};
  out.group.assign(parameters.size(), 0);
  out.parameters = std::move(parameters);
  return out;
}

Result<ParameterGroups> resolve_groups(const TrainingSettings& training, const NamedTensors& parameters) {
  const std::vector<GroupSettings>& groups = training.groups;
  const NoDecay& no_decay = training.no_decay;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    RETURN_IF_ERROR(check_matches(group_key(i) + ".params", groups[i].params, parameters));
  }
  RETURN_IF_ERROR(check_shadowed(groups, parameters));
  if (no_decay.kind == NoDecay::Kind::patterns) {
    RETURN_IF_ERROR(check_matches(kNoDecayKey, no_decay.patterns, parameters));
  }
  const GroupOptions own = own_options(training);
  ParameterGroups out;
  for (const auto& each : parameters) {
    const auto& [name, tensor] = each;
    const std::size_t group = first_group(groups, name);
    const GroupSettings said = group == kNoGroup ? GroupSettings{} : groups[group];
    if (said.freeze == true) {
      out.frozen.push_back(each);
      continue;
    }
    GroupOptions options = own;
    if (is_spared(no_decay, name, tensor)) options.weight_decay = 0;
    options.weight_decay = said.weight_decay.value_or(options.weight_decay);
    options.learning_rate = said.learning_rate.value_or(own.learning_rate);
    options.state = said.state.value_or(own.state);
    add(out, options, each);
  }
  if (out.parameters.empty() && !parameters.empty())
    return invalid_error("{}: every parameter is frozen; leave some to train", kGroupsKey);
  return out;
}

ParameterGroups with_states(ParameterGroups groups, octavo::StateFormat state) {
  for (GroupOptions& each : groups.options) each.state = state;
  return groups;
}

void freeze(const ParameterGroups& groups) {
  for (auto [name, tensor] : groups.frozen) {
    tensor.requires_grad_(false);
    tensor.mutable_grad().reset();
  }
}

double learning_rate(const TrainingSettings& training, std::int64_t step, std::int64_t steps) {
  const double high = training.learning_rate;
  const double low = std::min(training.min_lr, high);
  const std::int64_t warmup = training.warmup_steps;
  if (step <= warmup) return high * static_cast<double>(step) / static_cast<double>(warmup);
  const std::int64_t tail = training.decay_steps.value_or(std::max<std::int64_t>(steps / 10, 1));
  const std::int64_t from = training.lr_scheduler == Scheduler::wsd ? std::max(warmup, steps - tail) : warmup;
  if (step <= from || steps <= from) return high;
  const double done = std::min(static_cast<double>(step - 1 - from) / static_cast<double>(steps - from), 1.0);
  if (training.lr_scheduler == Scheduler::constant) return high;
  return training.lr_scheduler == Scheduler::cosine ? half_cosine(high, low, done)
                                                    : straight(high, low, done);
}

double rate_of(const GroupOptions& options, double highest, double rate) {
  return options.learning_rate == highest ? rate : options.learning_rate * (rate / highest);
}

std::vector<std::string> group_lines(const ParameterGroups& groups, const TrainingSettings& training) {
  const GroupOptions own = own_options(training);
  std::vector<std::string> out;
  const auto line = [&](const auto& tensors, const std::string& what) {
    const std::int64_t weights =
        std::transform_reduce(tensors.begin(), tensors.end(), std::int64_t{0}, std::plus<>(),
                              [](const torch::Tensor& each) { return each.numel(); });
    out.push_back(count_text(std::ssize(tensors), weights) + ": " + what);
  };
  for (std::size_t g = 0; g < groups.options.size(); ++g) {
    const GroupOptions& options = groups.options[g];
    std::string what;
    const auto say = [&](bool differs, const std::string& text) {
      if (differs) what += (what.empty() ? "" : ", ") + text;
    };
    say(options.weight_decay != own.weight_decay, "weight_decay " + significant(options.weight_decay, 3));
    say(options.learning_rate != own.learning_rate, "learning_rate " + significant(options.learning_rate, 3));
    say(options.state != own.state, std::string(name(options.state)) + " states");
    if (!what.empty()) line(groups.tensors_of(g), what);
  }
  std::vector<torch::Tensor> frozen;
  for (const auto& [name, tensor] : groups.frozen) frozen.push_back(tensor);
  if (!frozen.empty()) line(frozen, "frozen");
  return out;
}

}  // namespace octavo_train
