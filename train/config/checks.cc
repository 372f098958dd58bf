// Checks the rules that involve several keys; see checks.h. A rule for a single key is part of its type in
// schema.cc.
// SPDX-License-Identifier: MIT
#include "train/config/checks.h"

#include "train/base/metric_names.h"
#include "train/config/options.h"
#include "train/config/recipe.h"
#include "train/config/schema.h"
#include "train/config/task_config.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

// Returns `WHERE: PATH: MESSAGE`, the text of an error or a note about a key.
template <class... Args>
std::string about_key(const Config& config, std::string_view path, fmt::format_string<Args...> format,
                      Args&&... args) {
  return fmt::format("{}: {}: {}", config.origin(path).where(), path,
                     fmt::format(format, std::forward<Args>(args)...));
}

// Resolves the two keys for a run's length. The key that was given at the later level of precedence is used.
// If both were given in one file, or on one command line, max_steps is used, as in transformers.
Status settle_length(Config& config) {
  constexpr std::string_view kSteps = "training.max_steps", kEpochs = "training.num_train_epochs";
  TrainingSettings& training = config.settings.training;
  Origin& steps = config.origin(kSteps);
  Origin& epochs = config.origin(kEpochs);
  if (!training.max_steps && !training.num_train_epochs) {
    const Origin& last = steps.level >= epochs.level ? steps : epochs;
    return invalid_error("{}: {}: got null, and {} is null ({}); give one of them, so that the run ends",
                         last.where(), kSteps, kEpochs, epochs.where());
  }
  if (!training.max_steps || !training.num_train_epochs) return {};
  if (steps.level == epochs.level) {
    config.notes.push_back(about_key(
        config, kEpochs,
        "without effect: {} is {} ({}) and takes precedence; set max_steps to null to train for {} epochs",
        kSteps, config.value(kSteps), steps.where(), config.value(kEpochs)));
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
  constexpr std::string_view kBest = "training.save_best", kLimit = "training.save_best_limit";
  std::optional<std::string>& best = config.settings.training.save_best;
  const auto& metrics = find_task(config.settings.task)->metrics;
  const std::string known = joined(metrics, " or ");
  if (!best) {
    // The default of save_best_limit is valid even if it is given, because a saved config has every key.
    if (config.value(kLimit) == config.schema->setting(kLimit)->fallback) return {};
    return clash_error(config, kLimit, kBest, "name the metric that makes a checkpoint the best: " + known);
  }
  const auto is_metric = [&](std::string_view name) {
    return std::ranges::find(metrics, name) != metrics.end();
  };
  const std::string name(is_metric(*best) ? std::string_view(*best) : without_metric_prefix(*best));
  if (!is_metric(name)) {
    return Status::invalid(about_key(config, kBest, "got {}, expected {}, a metric of the task {}", *best,
                                     known, config.settings.task));
  }
  best = name;
  return {};
}

// Computes gradient_accumulation_steps from global_batch_size unless it is given. The number of ranks is not
// known yet. A size that no number of ranks can divide is an error here; accumulation_for() finds the other
// errors.
Status settle_accumulation(Config& config) {
  constexpr std::string_view kGlobal = "training.global_batch_size",
                             kPerDevice = "training.per_device_train_batch_size",
                             kAccumulation = "training.gradient_accumulation_steps";
  TrainingSettings& training = config.settings.training;
  const std::int64_t per_device = training.per_device_train_batch_size;
  if (!training.global_batch_size) {
    training.accumulation_is_auto = false;
  } else if (per_device == kNoLimit) {
    return clash_error(
        config, kGlobal, kPerDevice,
        "a fixed number of samples per step needs a fixed number per micro-batch: give a number");
  } else {
    if (config.origin(kAccumulation).level == Origin::Level::standard) training.accumulation_is_auto = true;
    const std::int64_t per_rank = per_device * training.gradient_accumulation_steps;  // auto is 1
    if (*training.global_batch_size % per_rank != 0) {
      return clash_error(
          config, kGlobal, per_rank == per_device ? kPerDevice : kAccumulation,
          fmt::format("it must be a multiple of {}, the samples of a rank's micro-batches", per_rank));
    }
    if (training.accumulation_is_auto)
      training.gradient_accumulation_steps = *training.global_batch_size / per_rank;  // for one rank
  }
  if (per_device == kNoLimit && !find_task(config.settings.task)->limits_batches) {
    return Status::invalid(about_key(
        config, kPerDevice, "got auto, but nothing else limits a batch of the task {}; give a number",
        config.settings.task));
  }
  return {};
}

// Checks the pairs of keys that contradict each other, in this order.
Status check_pairs(const Config& config) {
  const TrainingSettings& t = config.settings.training;
  const DataSettings& data = config.settings.data;
  const bool has_master =
      t.master_weights != MasterWeights::automatic && t.master_weights != MasterWeights::none;
  const bool on_device = t.offload == Offload::none;
  constexpr std::string_view kNeeds =
      "it applies only to states in host memory: use offload: host, stream or auto";
  const struct {
    bool broken;
    std::string_view path, other, fix;
  } rules[] = {
      {t.min_lr > t.learning_rate, "training.min_lr", "training.learning_rate",
       "the learning rate decays to min_lr: make min_lr the smaller one"},
      {has_master && t.compute_dtype != ComputeType::bfloat16, "training.master_weights",
       "training.compute_dtype", "only bfloat16 weights have a master copy: use master_weights: auto"},
      {on_device && t.offload_gradients, "training.offload_gradients", "training.offload", kNeeds},
      {on_device && t.offload_ratio != 1, "training.offload_ratio", "training.offload", kNeeds},
      {on_device && t.gpu_state_budget, "training.gpu_state_budget", "training.offload", kNeeds},
      {t.gpu_state_budget && t.offload_ratio != 1, "training.offload_ratio", "training.gpu_state_budget",
       "both limit the states on the GPU: keep one of them"},
      {data.stages && data.max_samples != -1, "data.stages", "data.max_samples",
       "each stage sets max_samples: use max_samples: -1"},
      {t.lr_scheduler != Scheduler::wsd && t.decay_steps, "training.decay_steps", "training.lr_scheduler",
       "only wsd reads decay_steps: use decay_steps: null"},
      {!t.init_rename.empty() && !t.init_from, "training.init_rename", "training.init_from",
       "give init_from, the source of the weights, or remove init_rename"},
  };
  for (const auto& [broken, path, other, fix] : rules)
    if (broken) return clash_error(config, path, other, fix);
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
  config.notes.push_back(
      fmt::format("{}: {}: {}", place.where(), kSwitch, on ? recipe::kSwitchOn : recipe::kSwitchOff));
}

// Adds a note for each key that is given without effect.
void note_ineffective_keys(Config& config) {
  // Earlier versions needed optimizer_fallback on GPUs that they had no kernels for.
  if (config.settings.training.optimizer_fallback) {
    config.notes.push_back(
        fmt::format("{}: training.optimizer_fallback: without effect: every optimizer runs on every device "
                    "that the trainer supports; remove it",
                    config.origin("training.optimizer_fallback").where()));
  }
  // A user who gives FP8 settings without training.fp8.enabled may expect FP8 to be on.
  const auto is_default = [&](std::string_view path) {
    return config.origin(path).level == Origin::Level::standard;
  };
  if (!is_default("training.fp8.enabled")) return;
  for (const Key& key : config.schema->keys())
    if (key.path.starts_with("training.fp8.") && !is_default(key.path))
      config.notes.push_back(about_key(
          config, key.path, "without effect: FP8 is off (training.fp8.enabled: true, or use_fp8: true)"));
}

constexpr std::size_t kMostShown = 12;

std::string counted_ranks(std::int64_t ranks) {
  return ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks);
}

// Returns the divisors in ascending order. REQUIRES: number >= 1.
std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t each = 1; each * each <= number; ++each) {
    if (number % each != 0) continue;
    low.push_back(each);
    if (each * each != number) high.push_back(number / each);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

// Returns the numbers as "1, 2, 3 or 6". If there are more than kMostShown, returns those around `near`.
template <class Write>
std::string listed(const std::vector<std::int64_t>& numbers, std::int64_t near, const Write& write) {
  std::size_t first = 0;
  while (first + kMostShown < numbers.size() && numbers[first + kMostShown / 2] < near) ++first;
  const std::size_t end = std::min(first + kMostShown, numbers.size());
  std::string out = first > 0 ? "…, " : "";
  for (std::size_t i = first; i < end; ++i) {
    const bool is_last = i + 1 == numbers.size();
    out += (i == first ? "" : is_last ? " or " : ", ") + write(numbers[i]);
  }
  return end < numbers.size() ? out + ", …" : out;
}

}  // namespace

Status clash_error(const Config& config, std::string_view path, std::string_view other,
                   std::string_view fix) {
  return Status::invalid(about_key(config, path, "got {}, but {} is {} ({}); {}", config.value(path), other,
                                   config.value(other), config.origin(other).where(), fix));
}

Status settle_and_check(Config& config) {
  RETURN_IF_ERROR(settle_length(config));
  RETURN_IF_ERROR(settle_options(config));
  RETURN_IF_ERROR(settle_accumulation(config));
  RETURN_IF_ERROR(check_pairs(config));
  note_ineffective_keys(config);
  note_optimizer_switch(config);
  RETURN_IF_ERROR(settle_best(config));
  return find_task(config.settings.task)->check(config);
}

Status check_complete(const Config& config) {
  return find_task(config.settings.task)->check_complete(config);
}

std::string possible_batch_splits(std::int64_t global, std::int64_t per_device, std::int64_t ranks) {
  if (global % ranks != 0) {
    const auto number = [](std::int64_t each) { return std::to_string(each); };
    return fmt::format("{} cannot divide it: use {} ranks", counted_ranks(ranks),
                       listed(divisors(global), ranks, number));
  }
  const std::int64_t rows = global / ranks;
  const auto split = [rows](std::int64_t each) { return fmt::format("{} x {}", each, rows / each); };
  return fmt::format("per_device_train_batch_size x gradient_accumulation_steps must be {} with {}: {}", rows,
                     counted_ranks(ranks), listed(divisors(rows), per_device, split));
}

Result<std::int64_t> accumulation_for(const TrainingSettings& training, std::int64_t ranks) {
  const std::int64_t given = training.gradient_accumulation_steps;
  if (!training.global_batch_size) return given;
  const std::int64_t global = *training.global_batch_size;
  const std::int64_t samples = training.per_device_train_batch_size * ranks;  // of one micro-batch per rank
  const std::int64_t micro_batches = global / samples;
  const bool agrees = training.accumulation_is_auto || micro_batches == given;
  if (global % samples == 0 && agrees) return micro_batches;
  return invalid_error(
      "training.global_batch_size: got {}, but per_device_train_batch_size is {}{} and there {}{}; {}{}",
      global, training.per_device_train_batch_size,
      training.accumulation_is_auto ? "" : fmt::format(", gradient_accumulation_steps is {}", given),
      ranks == 1 ? "is " : "are ", counted_ranks(ranks),
      possible_batch_splits(global, training.per_device_train_batch_size, ranks),
      global % ranks != 0 ? fmt::format(", or a multiple of {}", ranks) : "");
}

}  // namespace octavo_train
