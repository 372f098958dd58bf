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
std::vector<Idea> ideas_for(const Settings& settings, const Task& task, const PlanRequest& request,
                            const Plan& now) {
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
  const std::int64_t rows = training.per_device_train_batch_size;
  for (std::int64_t parts = 2; parts <= 8; parts *= 2) {
    Idea idea = {task.smaller_limits(parts), "the same step in micro-batches of 1/" + std::to_string(parts)};
    if (rows != kNoLimit && rows % parts == 0)
      idea.words.push_back("training.per_device_train_batch_size=" + std::to_string(rows / parts));
    if (idea.words.empty()) break;
    if (!training.accumulation_follows)  // else global_batch_size sets the number of micro-batches
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

bool have_common_key(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto key = [](const std::string& word) { return word.substr(0, word.find('=')); };
  return std::ranges::any_of(
      a, [&](const std::string& word) { return std::ranges::find(b, key(word), key) != b.end(); });
}

// Returns both together. Its savings and its cost are estimates until it is planned.
Advice joined(Advice a, const Advice& b) {
  a.words.insert(a.words.end(), b.words.begin(), b.words.end());
  a.why += (a.why.empty() ? "" : "; ") + b.why;
  a.saves += b.saves;
  a.slower *= b.slower;
  return a;
}

// Returns every combination of `size` settings without a common key.
std::vector<Advice> combinations(const std::vector<Advice>& each, std::size_t size) {
  struct Begun {
    Advice all;
    std::size_t next = 0;
  };
  std::vector<Begun> level(1);
  for (std::size_t n = 0; n < size; ++n) {
    std::vector<Begun> longer;
    for (const Begun& begun : level)
      for (std::size_t i = begun.next; i < each.size(); ++i)
        if (!have_common_key(begun.all.words, each[i].words))
          longer.push_back({joined(begun.all, each[i]), i + 1});
    level = std::move(longer);
  }
  std::vector<Advice> out;
  for (Begun& begun : level) out.push_back(std::move(begun.all));
  return out;
}

// Combinations of `size` settings after which the run fits. First those that should be enough by what each
// one saves alone, the cheapest in time first; then the others, because savings do not always add up.
std::vector<Advice> fitting(const LoadWith& load, const PlanRequest& request, const Plan& now,
                            const std::vector<Advice>& each, std::size_t size) {
  constexpr std::size_t kMostPlans = 24, kMostShown = 3;
  const std::int64_t needed = now.total() - now.gpu.memory;
  std::vector<Advice> candidates = combinations(each, size);
  std::ranges::stable_sort(candidates, [&](const Advice& a, const Advice& b) {
    const bool enough = a.saves >= needed;
    if (enough != (b.saves >= needed)) return enough;
    return enough ? a.slower < b.slower : a.saves > b.saves;
  });
  candidates.resize(std::min(candidates.size(), kMostPlans));
  std::vector<Advice> out;
  for (const Advice& next : candidates) {
    const auto plan = planned(load, next.words, request);
    if (plan && plan->fits()) out.push_back(advice_of({next.words, next.why}, now, *plan));
    if (out.size() == kMostShown) break;
  }
  return out;
}

// The cheapest ones one after the other, until it fits. Of two with a common key the one with which the
// others need less is kept; that may change when others have been added, so all are tried twice. None: it
// does not fit with any of these sets.
std::optional<Advice> together(const LoadWith& load, const PlanRequest& request, const Plan& now,
                               std::vector<Advice> each) {
  std::ranges::sort(each, {}, [](const Advice& a) {
    return (a.slower - 1) / static_cast<double>(std::max<std::int64_t>(a.saves, 1));
  });
  std::vector<Advice> chosen;
  std::int64_t least = now.total();
  for (int time = 0; time < 2; ++time) {
    for (const Advice& next : each) {
      std::vector<Advice> tried;
      for (const Advice& other : chosen)
        if (!have_common_key(other.words, next.words)) tried.push_back(other);
      const bool replaces = tried.size() < chosen.size();
      tried.push_back(next);
      Advice all;
      for (const Advice& one : tried) all = joined(std::move(all), one);
      const auto plan = planned(load, all.words, request);
      if (!plan || plan->total() > least || (replaces && plan->total() == least)) continue;
      if (plan->fits()) return advice_of({all.words, all.why}, now, *plan);
      least = plan->total();
      chosen = std::move(tried);
    }
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
  const std::unique_ptr<Task> task = make_task(config->settings.task);
  if (auto opened = task->open({config->settings, "", nullptr}); !opened.ok()) return opened.status();
  std::vector<Advice> each;
  for (const Idea& idea : ideas_for(config->settings, *task, request, now)) {
    const auto then = planned(load, idea.words, request);
    if (then && then->total() <= now.total()) each.push_back(advice_of(idea, now, *then));
  }
  std::vector<Advice> out;
  if (!now.fits() && std::ranges::none_of(each, &Advice::fits)) {
    for (const std::size_t size : {2, 3})
      if (out.empty()) out = fitting(load, request, now, each, size);
    if (out.empty()) {
      if (auto all = together(load, request, now, each)) out.push_back(std::move(*all));
    }
  }
  // One that saves nothing alone may be needed in a combination: two peaks may be nearly the same.
  for (Advice& alone : each)
    if (alone.saves >= kWorthSaying) out.push_back(std::move(alone));
  std::ranges::stable_sort(
      out, [](const Advice& a, const Advice& b) { return a.fits != b.fits ? a.fits : a.slower < b.slower; });
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
