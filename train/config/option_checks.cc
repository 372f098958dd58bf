// Checks and completes an algorithm's options once the algorithm is known; see checks.h. A key may be in a
// config only because optimizer_fallback needs it. If the trainer's default differs from the chosen
// algorithm's own default, the algorithm's default is used.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/config/checks.h"
#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/config/schema.h"

#include <octavo/describe.h>
#include <octavo/optimizer.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::string_view kOptimizerKey = "training.optimizer";
constexpr std::string_view kGroupsKey = "training.groups";

struct RequestedOptimizer {
  std::string_view key;
  OptimizerName optimizer;
};

// Returns the optimizer, and the fallback if there is one.
std::vector<RequestedOptimizer> asked_for(const TrainingSettings& training) {
  std::vector<RequestedOptimizer> out = {{kOptimizerKey, training.optimizer}};
  if (training.optimizer_fallback)
    out.push_back({"training.optimizer_fallback", *training.optimizer_fallback});
  return out;
}

std::string shown_value(const Key& key, const Config& config) {
  return key.setting()->type.show(config.settings);
}

bool is_default(const Key& key, const Config& config) {
  return shown_value(key, config) == key.setting()->fallback;
}

// Sets a key that was not given from the trainer's default to null, if an algorithm that has the option has
// another default.
void give_way(const Key& key, Config& config) {
  const std::string_view name = key.setting()->option;
  TrainingSettings& training = config.settings.training;
  const auto value = training.options.find(name);
  if (value == training.options.end()) return;
  for (const RequestedOptimizer& asked : asked_for(training)) {
    const octavo::Option* const option = find_option(asked.optimizer.algorithm, name);
    if (option != nullptr && option_default(asked.optimizer.algorithm, *option) != value->second) {
      training.options.erase(value);
      return;
    }
  }
}

// Handles a given option that neither the optimizer nor the fallback has. The key's default value is
// accepted. A value that is given below the optimizer's level (in the file, if the command line names another
// optimizer) is dropped. Any other value is an error.
Status settle_foreign(const Key& key, Config& config) {
  Origin& origin = config.origins[config.schema->index(key.path)];
  const Origin& optimizer = config.origin(kOptimizerKey);
  const octavo::Algorithm algorithm = config.settings.training.optimizer.algorithm;
  if (is_default(key, config) || shown_value(key, config) == "null") return {};
  if (origin.level >= optimizer.level) {
    return Status::invalid(origin.place() + ": " + std::string(key.path) + ": got " +
                           shown_value(key, config) + ", but " + std::string(kOptimizerKey) + " is " +
                           config.schema->setting(kOptimizerKey)->type.show(config.settings) + " (" +
                           optimizer.place() + "), which does not have it; the options of " +
                           std::string(octavo::name(algorithm)) + " are " + option_names(algorithm));
  }
  const YamlNode fallback{
      .kind = key.setting()->fallback == "null" ? YamlNode::Kind::null : YamlNode::Kind::scalar,
      .text = std::string(key.setting()->fallback),
      .plain = true};
  if (!key.setting()->type.set(fallback, config.settings)) {
    return Status::failed("schema: " + std::string(key.path) + " does not take its default");
  }
  origin = {};
  return {};
}

// Runs the core's checks of ranges and of incompatible options, by a step without tensors.
Status check_values(const RequestedOptimizer& asked, const Config& config) {
  const TrainingSettings& training = config.settings.training;
  octavo::StepArgs args;
  args.hyper = hyper_params(training, asked.optimizer.algorithm);
  args.step = 1;
  args.threads = 1;
  const Status bad = step(group_config(training, asked.optimizer.algorithm), {}, args).status();
  if (bad.ok()) return {};
  // The core's message is "[algorithm] option: got 5, expected …". The error names the option's key instead.
  std::string message(bad.message());
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
  const std::string path = "training." + (option == "lr" ? "learning_rate" : option);
  const std::size_t key = config.schema->index(path);
  const std::string_view blamed = key == kNoKey ? asked.key : (*config.schema)[key].path;
  return {bad.code(), config.origin(blamed).place() + ": " + std::string(blamed) +
                          (key == kNoKey ? ": " + message : message.substr(option.size())) + " (" +
                          std::string(octavo::name(asked.optimizer.algorithm)) + ")"};
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
  std::string taken;
  for (const octavo::StateFormat format : octavo::all_state_formats()) {
    if (!excluded(format)) taken += (taken.empty() ? "" : ", ") + std::string(octavo::name(format));
  }
  return Status::unsupported(config.origin(key).place() + ": " + what + ": " + std::string(info.name) +
                             " has no " + std::string(octavo::name(optimizer.state)) + " states; it takes " +
                             taken);
}

// Checks that the optimizer supports the settings of the parameter groups. (A fallback has fp32 states
// everywhere.)
Status check_groups(const Config& config) {
  const octavo::Algorithm algorithm = config.settings.training.optimizer.algorithm;
  const std::vector<GroupSettings>& groups = config.settings.training.groups;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string key = std::string(kGroupsKey) + "[" + std::to_string(i) + "]";
    if (groups[i].weight_decay && find_option(algorithm, recipe::kDecay) == nullptr)
      return Status::invalid(config.origin(kGroupsKey).place() + ": " + key + ".weight_decay: " +
                             std::string(octavo::name(algorithm)) + " has no weight decay; remove it");
    if (!groups[i].state) continue;
    RETURN_IF_ERROR(check_format(key + ".state", kGroupsKey, {algorithm, *groups[i].state}, config));
  }
  return {};
}

}  // namespace

Status settle_options(Config& config) {
  for (const Key& key : config.schema->keys()) {
    if (key.setting() == nullptr || key.setting()->option.empty()) continue;
    const std::vector<RequestedOptimizer> asked = asked_for(config.settings.training);
    const bool has = std::ranges::any_of(asked, [&](const RequestedOptimizer& each) {
      return find_option(each.optimizer.algorithm, key.setting()->option) != nullptr;
    });
    if (config.origin(key.path).level == Origin::Level::standard) {
      if (config.origin(key.path).via != kByRecipe) give_way(key, config);
    } else if (!has) {
      RETURN_IF_ERROR(settle_foreign(key, config));
    }
  }
  for (const RequestedOptimizer& asked : asked_for(config.settings.training)) {
    RETURN_IF_ERROR(check_format(std::string(asked.key), asked.key, asked.optimizer, config));
    RETURN_IF_ERROR(check_values(asked, config));
  }
  return check_groups(config);
}

}  // namespace octavo_train
