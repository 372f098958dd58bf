// SPDX-License-Identifier: MIT
#include "plan/advise.h"

#include "train/config/passes.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace octavo::train {
namespace {

struct Idea {
  std::vector<std::string> words;
  std::string why;
};

std::string optimizer_word(const TrainingSettings& training, const char* state) {
  return "training.optimizer=" + std::string(name(training.optimizer.algorithm)) + "_" + state;
}

// In the order of what they cost, as far as that is known before a plan.
std::vector<Idea> ideas_for(const Settings& settings, const PlanRequest& request, const Plan& now) {
  const TrainingSettings& training = settings.training;
  std::vector<Idea> out;
  if (now.evaluation > 0 && now.evaluation_rows > 1)
    out.push_back({{"training.per_device_eval_batch_size=" +
                    std::to_string(std::min(training.per_device_train_batch_size, now.evaluation_rows / 2))},
                   "evaluations in smaller passes: their peak is above a step's"});
  if (training.compute_dtype == ComputeType::float32)
    out.push_back({{"training.compute_dtype=bfloat16"}, "activations and weights of half the size"});
  const StateFormat state = training.optimizer.state;
  if (state == StateFormat::fp32 || state == StateFormat::bf16)
    out.push_back({{optimizer_word(training, "8bit")}, "optimizer states in 8 bits"});
  if (state != StateFormat::int4 && state != StateFormat::int4_rank1)
    out.push_back({{optimizer_word(training, "4bit")}, "optimizer states in 4 bits"});
  if (training.compute_dtype == ComputeType::bfloat16 && weight_store(training) != WeightStore::stochastic)
    out.push_back(
        {{"training.master_weights=stochastic"}, "no master bits; weights are rounded stochastically"});
  if (request.num_gpus > 1) {
    if (training.parallel != Parallel::zero1 && training.parallel != Parallel::zero2)
      out.push_back({{"training.parallel=zero1"}, "optimizer states divided among the GPUs"});
    if (training.parallel != Parallel::zero2)
      out.push_back({{"training.parallel=zero2"}, "states and gradients divided among the GPUs"});
  }
  out.push_back(
      {{"model.gradient_checkpointing=true"}, "activations of one layer instead of all, computed again"});
  if (!training.fp8.enabled && training.compute_dtype == ComputeType::bfloat16 &&
      request.gpu.flops[static_cast<std::size_t>(octavo::plan::Precision::fp8)] > 0)
    out.push_back({{"training.fp8.enabled=true"}, "activations of products kept in FP8"});
  if (training.offload == Offload::none && request.num_gpus == 1) {
    out.push_back({{"training.offload=stream"}, "states in host memory, brought through the GPU"});
    out.push_back({{"training.offload=host", "training.offload_gradients=true"},
                   "states and gradients in host memory, updated by the CPU"});
  }
  for (std::int64_t parts = 2; parts <= 8 && training.per_device_train_batch_size % parts == 0; parts *= 2) {
    Idea idea = {{"training.per_device_train_batch_size=" +
                  std::to_string(training.per_device_train_batch_size / parts)},
                 "the same step in passes of 1/" + std::to_string(parts)};
    if (!training.accumulation_follows)  // else more passes come of themselves
      idea.words.push_back("training.gradient_accumulation_steps=" +
                           std::to_string(training.gradient_accumulation_steps * parts));
    out.push_back(std::move(idea));
  }
  return out;
}

// None: the settings do not go with the others, or not with the model.
std::optional<Plan> planned(const LoadWith& load, const std::vector<std::string>& words,
                            const PlanRequest& request) {
  auto config = load(words);
  if (!config.ok()) return std::nullopt;
  auto plan = make_plan(config->settings, request);
  if (!plan.ok()) return std::nullopt;
  return std::move(*plan);
}

Advice advice_of(const Idea& idea, const Plan& now, const Plan& then) {
  return {idea.words, idea.why, now.total() - then.total(), now.units_per_second / then.units_per_second,
          then.fits()};
}

constexpr std::int64_t kWorthSaying = 1 << 20;

// The cheapest ones one after the other, until it fits. None: even all of them are too few.
std::optional<Advice> together(const LoadWith& load, const PlanRequest& request, const Plan& now,
                               std::vector<Advice> each) {
  std::ranges::sort(each, {}, [](const Advice& a) { return (a.slower - 1) / static_cast<double>(a.saves); });
  Idea all;
  for (const Advice& next : each) {
    Idea tried = all;
    tried.words.insert(tried.words.end(), next.words.begin(), next.words.end());
    tried.why += (tried.why.empty() ? "" : "; ") + next.why;
    const auto plan = planned(load, tried.words, request);
    if (!plan) continue;
    if (plan->fits()) return advice_of(tried, now, *plan);
    all = std::move(tried);
  }
  return std::nullopt;
}

// --- the largest that fits ---

struct Key {
  std::string name;
  std::int64_t now = 1, step = 1;
};

Result<Key> key_of(Solve what, const Settings& settings) {
  if (what == Solve::batch)
    return Key{"training.per_device_train_batch_size", settings.training.per_device_train_batch_size, 1};
  const std::unique_ptr<Task> task = make_task(settings.task);
  if (auto opened = task->open({settings, "", nullptr}); !opened.ok()) return opened.status();
  const Task::SizeKey key = what == Solve::length ? task->length_key() : task->model_key();
  if (key.key.empty())
    return Status::invalid("--solve: the task " + settings.task + " has no key for the " +
                           (what == Solve::length ? "length of a sample" : "size of this model") +
                           "; use --solve batch or --solve gpus");
  return Key{key.key, key.now, std::max<std::int64_t>(key.step, 1)};
}

// Powers of two; of a global batch all numbers that can divide it.
std::vector<std::int64_t> counts_of_gpus(const TrainingSettings& training) {
  std::vector<std::int64_t> out;
  for (std::int64_t count = 1; count <= 1024; count += training.global_batch_size ? 1 : count)
    if (accumulation_for(training, count).ok()) out.push_back(count);
  return out;
}

}  // namespace

Result<std::vector<Advice>> advise(const LoadWith& load, const PlanRequest& request, const Plan& now) {
  auto config = load({});
  if (!config.ok()) return config.status();
  std::vector<Advice> out;
  for (const Idea& idea : ideas_for(config->settings, request, now)) {
    const auto then = planned(load, idea.words, request);
    if (!then) continue;
    Advice found = advice_of(idea, now, *then);
    if (found.saves >= kWorthSaying) out.push_back(std::move(found));
  }
  std::ranges::stable_sort(
      out, [](const Advice& a, const Advice& b) { return a.fits != b.fits ? a.fits : a.slower < b.slower; });
  const bool enough = std::ranges::any_of(out, &Advice::fits);
  if (!now.fits() && !enough) {
    if (auto all = together(load, request, now, out)) out.push_back(std::move(*all));
  }
  return out;
}

Result<Solution> solve(Solve what, const LoadWith& load, const PlanRequest& request) {
  auto config = load({});
  if (!config.ok()) return config.status();
  if (what == Solve::gpus) {
    Solution out;
    for (const std::int64_t count : counts_of_gpus(config->settings.training)) {
      PlanRequest more = request;
      more.num_gpus = count;
      std::vector<std::string> words;
      if (count > 1) words.emplace_back("training.parallel=zero2");
      auto with = load(words);
      if (!with.ok()) return with.status();
      auto plan = make_plan(with->settings, more);
      if (!plan.ok()) return plan.status();
      if (!plan->fits()) continue;
      out.num_gpus = count;
      out.words = words;
      out.text =
          std::to_string(count) + (count > 1 ? " GPUs with parallel=zero2 are enough" : " GPU is enough");
      return out;
    }
    out.text = (config->settings.training.global_batch_size
                    ? "it does not fit as many GPUs as training.global_batch_size can be divided among"
                    : "it does not fit 1,024 GPUs either") +
               std::string(": what every GPU has whole, weights and activations, is too much");
    return out;
  }
  auto key = key_of(what, config->settings);
  if (!key.ok()) return key.status();
  const auto word = [&](std::int64_t value) { return key->name + "=" + std::to_string(value); };
  Status problem;
  // Bytes that it takes; more than any GPU has where it cannot be planned.
  const auto total = [&](std::int64_t multiple) {
    auto with = load({word(multiple * key->step)});
    auto plan = with.ok() ? make_plan(with->settings, request) : Result<Plan>(with.status());
    if (plan.ok()) return plan->total();
    problem = plan.status();
    return std::numeric_limits<std::int64_t>::max();
  };
  // Doubling until it does not fit. Then where a line between the two would meet the GPU's memory: bytes grow
  // nearly in proportion, so that a few plans are enough.
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  std::int64_t good = 0, bad = std::max<std::int64_t>(key->now / key->step, 1), good_bytes = 0;
  std::int64_t bad_bytes = total(bad);
  while (bad <= kMost && bad_bytes <= request.gpu.memory) {
    good_bytes = bad_bytes;
    good = std::exchange(bad, 2 * bad);
    bad_bytes = total(bad);
  }
  if (good == 0 && !problem.ok()) return problem;
  for (bool beside = false; bad - good > 1;) {
    const double share =
        static_cast<double>(request.gpu.memory - good_bytes) / static_cast<double>(bad_bytes - good_bytes);
    const bool useful = good > 0 && problem.ok();
    std::int64_t middle =
        useful ? good + static_cast<std::int64_t>(share * static_cast<double>(bad - good)) + (beside ? 1 : 0)
               : good + (bad - good) / 2;
    middle = std::clamp(middle, good + 1, bad - 1);
    const std::int64_t bytes = total(middle);
    beside = bytes <= request.gpu.memory;  // then the next one tried is the one above the line
    if (beside)
      good = middle, good_bytes = bytes;
    else
      bad = middle, bad_bytes = bytes;
  }
  Solution out;
  out.num_gpus = request.num_gpus;
  if (good == 0) {
    out.text = word(key->step) + " does not fit either";
    return out;
  }
  out.words = {word(good * key->step)};
  out.text = out.words.front() + " fits, " + std::to_string(bad * key->step) +
             (problem.ok() ? " does not" : " cannot be planned (" + problem.message() + ")");
  return out;
}

}  // namespace octavo::train
