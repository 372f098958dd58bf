// Checks the rules that involve several keys; see checks.h. A rule for a single key is part of its type in
// schema.cc.
// SPDX-License-Identifier: MIT
#include "train/config/checks.h"

#include "train/base/metric_names.h"
#include "train/base/status.h"
#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/config/schema.h"
#include "train/config/task_config.h"

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
  if (!key.setting()->type.set(fallback, config.settings))
    return Status::failed("schema: " + std::string(key.path) + " does not take its default");
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
  for (const octavo::StateFormat format : octavo::all_state_formats())
    if (!excluded(format)) taken += (taken.empty() ? "" : ", ") + std::string(octavo::name(format));
  return unsupported_error("{}: {}: {} has no {} states; it takes {}", config.origin(key).place(), what,
                           info.name, octavo::name(optimizer.state), taken);
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

std::string value_of(const Config& config, std::string_view path) {
  return config.schema->setting(path)->type.show(config.settings);
}

// Checks and completes the options of the chosen algorithm. A key may be in a config only because
// optimizer_fallback needs it. If the trainer's default differs from the chosen algorithm's own default, the
// algorithm's default is used.
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

// Resolves the two keys for a run's length. The key that was given at the later level of precedence is used.
// If both were given in one file, or on one command line, max_steps is used, as in transformers.
Status settle_length(Config& config) {
  TrainingSettings& training = config.settings.training;
  Origin& steps = config.origins[config.schema->index("training.max_steps")];
  Origin& epochs = config.origins[config.schema->index("training.num_train_epochs")];
  if (!training.max_steps && !training.num_train_epochs) {
    const Origin& last = steps.level >= epochs.level ? steps : epochs;
    return Status::invalid(last.place() +
                           ": training.max_steps: got null, and training.num_train_epochs is null (" +
                           epochs.place() + "); give one of them, so that the run ends");
  }
  if (!training.max_steps || !training.num_train_epochs) return {};
  if (steps.level == epochs.level) {
    config.notes.push_back(epochs.place() +
                           ": training.num_train_epochs: without effect: training.max_steps is " +
                           value_of(config, "training.max_steps") + " (" + steps.place() +
                           "), which counts where both are given; set max_steps to null to train for " +
                           value_of(config, "training.num_train_epochs") + " epochs");
  }
  if (steps.level < epochs.level) {
    training.max_steps.reset();
    steps = epochs;
    steps.via = "num_train_epochs";
  } else {
    training.num_train_epochs.reset();
    epochs = steps;
    epochs.via = "max_steps";
  }
  return {};
}

// Checks save_best here, because the metrics belong to the task and key types do not know the task. `val_wer`
// becomes `wer`.
Status settle_best(Config& config) {
  TrainingSettings& training = config.settings.training;
  const auto& metrics = find_task(config.settings.task)->metrics;
  const std::string known = joined(metrics, " or ");
  if (!training.save_best) {
    // The default of save_best_limit is valid even if it is given, because a saved config has every key.
    const std::string_view limit = "training.save_best_limit";
    if (value_of(config, limit) == config.schema->setting(limit)->fallback) return {};
    return Status::invalid(clash(config, "training.save_best_limit", "training.save_best",
                                 "name the metric that makes a checkpoint the best: " + known));
  }
  const auto is_metric = [&](std::string_view name) {
    return std::ranges::find(metrics, name) != metrics.end();
  };
  if (is_metric(*training.save_best)) return {};
  if (const std::string name(without_metric_prefix(*training.save_best)); is_metric(name)) {
    training.save_best = name;
    return {};
  }
  return Status::invalid(config.origin("training.save_best").place() + ": training.save_best: got " +
                         *training.save_best + ", expected " + known + " (what the task " +
                         config.settings.task + " measures)");
}

// Computes gradient_accumulation_steps from global_batch_size unless it is given. The number of ranks is not
// known yet. A size that no number of ranks can divide is an error here; accumulation_for() finds the other
// errors.
Status settle_passes(Config& config) {
  TrainingSettings& training = config.settings.training;
  const Origin& passes = config.origin("training.gradient_accumulation_steps");
  if (!training.global_batch_size) {
    training.accumulation_is_auto = false;
    return {};
  }
  if (training.per_device_train_batch_size == kNoLimit) {
    return Status::invalid(
        clash(config, "training.global_batch_size", "training.per_device_train_batch_size",
              "samples of a step can be fixed only where those of a pass are: give a number"));
  }
  if (passes.level == Origin::Level::standard) training.accumulation_is_auto = true;
  const std::int64_t rank =
      training.per_device_train_batch_size * training.gradient_accumulation_steps;  // auto is 1
  if (*training.global_batch_size % rank != 0) {
    return Status::invalid(
        clash(config, "training.global_batch_size",
              rank == training.per_device_train_batch_size ? "training.per_device_train_batch_size"
                                                           : "training.gradient_accumulation_steps",
              "it must be a multiple of " + std::to_string(rank) + ", the samples of a rank's passes"));
  }
  if (training.accumulation_is_auto)
    training.gradient_accumulation_steps = *training.global_batch_size / rank;  // for one rank
  return {};
}

// Checks the pairs of keys that contradict each other, in this order.
Status check_pairs(const Config& config) {
  const TrainingSettings& t = config.settings.training;
  const DataSettings& data = config.settings.data;
  const bool has_master =
      t.master_weights != MasterWeights::automatic && t.master_weights != MasterWeights::none;
  const bool on_device = t.offload == Offload::none;
  constexpr std::string_view kNeeds = "only states in host memory have it: use offload: host, stream or auto";
  const struct {
    bool broken;
    std::string_view path, other, fix;
  } rules[] = {
      {t.min_lr > t.learning_rate, "training.min_lr", "training.learning_rate",
       "min_lr is where a decay ends: make it the smaller one"},
      {has_master && t.compute_dtype != ComputeType::bfloat16, "training.master_weights",
       "training.compute_dtype", "only bfloat16 weights have a master: use master_weights: auto"},
      {on_device && t.offload_gradients, "training.offload_gradients", "training.offload", kNeeds},
      {on_device && t.offload_ratio != 1, "training.offload_ratio", "training.offload", kNeeds},
      {on_device && t.gpu_state_budget, "training.gpu_state_budget", "training.offload", kNeeds},
      {t.gpu_state_budget && t.offload_ratio != 1, "training.offload_ratio", "training.gpu_state_budget",
       "either says how much stays: keep one of them"},
      {data.stages && data.max_samples != -1, "data.stages", "data.max_samples",
       "stages are the values that max_samples takes: use max_samples: -1"},
      {t.lr_scheduler != Scheduler::wsd && t.decay_steps, "training.decay_steps", "training.lr_scheduler",
       "only wsd has a decay of its own length: use decay_steps: null"},
      {!t.init_rename.empty() && !t.init_from, "training.init_rename", "training.init_from",
       "name what the weights come from, or remove init_rename"},
  };
  for (const auto& [broken, path, other, fix] : rules)
    if (broken) return Status::invalid(clash(config, path, other, fix));
  return {};
}

// Adds a note that names the optimizer if another tool's switch, use_4bit_optimizer, has chosen it.
void note_optimizer_switch(Config& config) {
  constexpr std::string_view kSwitch = "use_4bit_optimizer";
  const Origin& origin = config.origin("training.optimizer");
  if (origin.via != kSwitch) return;
  Origin place = origin;
  place.via.clear();
  const bool on = config.settings.training.optimizer.state != octavo::StateFormat::fp32;
  config.notes.push_back(place.place() + ": " + std::string(kSwitch) + ": " +
                         std::string(on ? recipe::kSwitchOn : recipe::kSwitchOff));
}

// Adds a note for optimizer_fallback, which earlier versions needed on GPUs that they had no kernels for.
void note_optimizer_fallback(Config& config) {
  if (!config.settings.training.optimizer_fallback) return;
  config.notes.push_back(
      config.origin("training.optimizer_fallback").place() +
      ": training.optimizer_fallback: without effect: every optimizer runs on every device "
      "that the trainer supports; remove it");
}

// Adds a note for each FP8 setting that is given although training.fp8.enabled is not given, because the user
// may expect FP8 to be on.
void note_idle_fp8(Config& config) {
  if (config.origin("training.fp8.enabled").level != Origin::Level::standard) return;
  for (std::size_t i = 0; i < config.schema->size(); ++i) {
    const Key& key = (*config.schema)[i];
    if (!key.path.starts_with("training.fp8.") || config.origins[i].level == Origin::Level::standard)
      continue;
    config.notes.push_back(config.origins[i].place() + ": " + std::string(key.path) +
                           ": without effect: FP8 is off (training.fp8.enabled: true, or use_fp8: true)");
  }
}

}  // namespace

std::string clash(const Config& config, std::string_view path, std::string_view other, std::string_view fix) {
  return config.origin(path).place() + ": " + std::string(path) + ": got " + value_of(config, path) +
         ", but " + std::string(other) + " is " + value_of(config, other) + " (" +
         config.origin(other).place() + "); " + std::string(fix);
}

Status settle_and_check(Config& config) {
  RETURN_IF_ERROR(settle_length(config));
  RETURN_IF_ERROR(settle_options(config));
  RETURN_IF_ERROR(settle_passes(config));
  const TrainingSettings& training = config.settings.training;
  if (training.per_device_train_batch_size == kNoLimit && !find_task(config.settings.task)->limits_batches) {
    return invalid_error(
        "{}: training.per_device_train_batch_size: got auto, but nothing else limits a batch of the task {}; "
        "give a number",
        config.origin("training.per_device_train_batch_size").place(), config.settings.task);
  }
  RETURN_IF_ERROR(check_pairs(config));
  note_optimizer_fallback(config);
  note_idle_fp8(config);
  note_optimizer_switch(config);
  RETURN_IF_ERROR(settle_best(config));
  return find_task(config.settings.task)->check(config);
}

Status check_complete(const Config& config) {
  return find_task(config.settings.task)->check_complete(config);
}

}  // namespace octavo_train
