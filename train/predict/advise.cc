// SPDX-License-Identifier: MIT
#include "train/predict/advise.h"

#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/config/micro_batches.h"
#include "train/config/options.h"
#include "train/config/paths.h"

#include <octavo/optimizer.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

namespace octavo_train {
namespace {

struct Idea {
  std::vector<std::string> words;
  std::string why;
  Relief relief = Relief::always;
};

// The hardware that a run uses. Ideas depend on it and on the settings.
struct Machine {
  bool gpu = true, fp8 = false;
  std::int64_t ranks = 1;
  std::int64_t evaluation_rows = 0;  // rows of a smaller evaluation batch to suggest; 0: none
};

double state_bytes_per_weight(const TrainingSettings& training, octavo::StateFormat state) {
  const octavo::GroupConfig config = group_config(training, training.optimizer.algorithm);
  octavo::TensorSpec spec;
  spec.numel = 1 << 20;
  spec.format = state;
  return static_cast<double>(layout(config, spec).value().state_bytes()) / static_cast<double>(spec.numel);
}

// Adds the run's optimizer with states of another format, if they are smaller.
void add_states(const TrainingSettings& training, octavo::StateFormat state, std::vector<Idea>& out) {
  const double now = state_bytes_per_weight(training, training.optimizer.state);
  const double then = state_bytes_per_weight(training, state);
  if (then >= now) return;
  out.push_back({{"training.optimizer=" + std::string(name(training.optimizer.algorithm)) + "_" +
                  std::string(name(state))},
                 significant(then, 3) + " bytes of state per weight instead of " + significant(now, 3)});
}

// Adds smaller micro-batches that make the same step. The smallest divisor of the batch comes first.
void add_micro_batches(const TrainingSettings& training, const Task& task, std::vector<Idea>& out) {
  const std::int64_t rows = training.per_device_train_batch_size;
  std::int64_t least = 2;
  if (rows != kNoLimit && task.smaller_limits(least).empty())
    while (least < rows && rows % least != 0) ++least;
  for (const std::int64_t parts : {least, std::int64_t{4}, std::int64_t{8}}) {
    if (parts < least) continue;
    Idea idea = {task.smaller_limits(parts), "the same step in micro-batches of 1/" + std::to_string(parts),
                 Relief::micro_batch};
    if (rows != kNoLimit && rows > 1 && rows % parts == 0)
      idea.words.push_back("training.per_device_train_batch_size=" + std::to_string(rows / parts));
    if (idea.words.empty()) break;
    if (!training.accumulation_is_auto)  // else global_batch_size sets the number of micro-batches
      idea.words.push_back("training.gradient_accumulation_steps=" +
                           std::to_string(training.gradient_accumulation_steps * parts));
    out.push_back(std::move(idea));
  }
}

// Returns the ideas in the order used without a plan.
std::vector<Idea> ideas_for(const Settings& settings, const Task& task, const Machine& machine) {
  const TrainingSettings& training = settings.training;
  std::vector<Idea> out;
  add_micro_batches(training, task, out);
  if (machine.evaluation_rows > 0)
    out.push_back({{"training.per_device_eval_batch_size=" + std::to_string(machine.evaluation_rows)},
                   "evaluations in smaller batches",
                   Relief::evaluation});
  out.push_back({{"model.gradient_checkpointing=true"},
                 "activations of one layer instead of all, computed again",
                 Relief::step});
  if (training.compute_dtype == ComputeType::float32)
    out.push_back({{"training.compute_dtype=bfloat16"}, "activations and weights of half the size"});
  if (!training.fp8.enabled && training.compute_dtype == ComputeType::bfloat16 && machine.fp8)
    out.push_back(
        {{"training.fp8.enabled=true"}, "activations of FP8 matmuls are stored in FP8", Relief::step});
  if (training.offload == Offload::none && machine.gpu && machine.ranks == 1) {
    out.push_back({{"training.offload=stream"}, "states in host memory, brought through the GPU"});
    out.push_back({{"training.offload=host", "training.offload_gradients=true"},
                   "states and gradients in host memory, updated by the CPU"});
  }
  const octavo::StateFormat state = training.optimizer.state;
  if (state == octavo::StateFormat::fp32 || state == octavo::StateFormat::bf16)
    add_states(training, octavo::StateFormat::int8, out);
  if (state != octavo::StateFormat::int4 && state != octavo::StateFormat::int4_rank1)
    add_states(training, octavo::StateFormat::int4, out);
  if (training.compute_dtype == ComputeType::bfloat16 &&
      weight_store(training) != octavo::WeightStore::stochastic)
    out.push_back(
        {{"training.master_weights=stochastic"}, "no master bits; weights are rounded stochastically"});
  if (machine.ranks > 1) {
    if (training.parallel != Parallel::zero1 && training.parallel != Parallel::zero2)
      out.push_back({{"training.parallel=zero1"}, "optimizer states divided among the GPUs"});
    if (training.parallel != Parallel::zero2)
      out.push_back({{"training.parallel=zero2"}, "states and gradients divided among the GPUs"});
  }
  return out;
}

bool has_fp8(const octavo::plan::Gpu& gpu) {
  return gpu.flops[static_cast<std::size_t>(octavo::plan::Precision::fp8)] > 0;
}

// Predictions a run with other settings. Its data is opened once, and again only if settings of `data`
// differ.
class Predictions {
 public:
  Predictions(const LoadWith& load, const PredictionRequest& request, Task& task)
      : load_(load), request_(request), task_(task) {}

  // Returns nullopt if the settings are invalid together with the others or with the model.
  std::optional<Prediction> operator()(const std::vector<std::string>& words) const {
    auto config = load_(words);
    if (!config.ok()) return std::nullopt;
    const bool data = std::ranges::any_of(words, [](const auto& word) { return word.starts_with("data."); });
    auto plan =
        data ? make_plan(config->settings, request_) : make_plan_of_open(config->settings, task_, request_);
    if (!plan.ok()) return std::nullopt;
    return std::move(*plan);
  }

 private:
  const LoadWith& load_;
  const PredictionRequest& request_;
  Task& task_;
};

// Returns the bytes of device memory that a run needs in steps, in evaluations, or in both.
using Need = std::int64_t (*)(const Prediction&);

std::int64_t total_need(const Prediction& plan) { return plan.total(); }

Advice advice_of(const Idea& idea, const Prediction& now, const Prediction& then, Need need = total_need) {
  const bool timed = now.units_per_second > 0 && then.units_per_second > 0;
  Advice out = {idea.words,
                idea.why,
                need(now) - need(then),
                timed ? now.units_per_second / then.units_per_second : 1,
                need(then) <= now.gpu.memory,
                idea.relief,
                std::max<std::int64_t>(then.gradient_sums - now.gradient_sums, 0)};
  if (idea.relief == Relief::micro_batch && out.sums > 0)
    out.why += "; fp32 sums of gradients add " + bytes_text(out.sums);
  return out;
}

// Returns advice for each idea that can be planned.
std::vector<Advice> singles(const std::vector<Idea>& ideas, const Predictions& plans, const Prediction& now,
                            Need need = total_need) {
  std::vector<Advice> out;
  for (const Idea& idea : ideas)
    if (const auto then = plans(idea.words)) out.push_back(advice_of(idea, now, *then, need));
  return out;
}

// Sorts settings that make the run fit first, then by slowdown.
void sort_advice(std::vector<Advice>& advice) {
  std::ranges::stable_sort(advice, [](const Advice& a, const Advice& b) {
    return a.fits != b.fits ? a.fits : a.slower < b.slower;
  });
}

constexpr std::int64_t kWorthSaving = 1 << 20;

bool have_common_key(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto key = [](const std::string& word) { return word.substr(0, word.find('=')); };
  return std::ranges::any_of(
      a, [&](const std::string& word) { return std::ranges::find(b, key(word), key) != b.end(); });
}

// Returns the combination of both. Its savings and cost are estimates until it is planned.
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

// Returns combinations of `size` settings with which the run fits. Combinations whose single savings add up
// to enough are tried first, the cheapest in time first. The others follow, because savings do not always add
// up.
std::vector<Advice> fitting(const Predictions& plans, const Prediction& now, const std::vector<Advice>& each,
                            std::size_t size) {
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
    const auto plan = plans(next.words);
    if (plan && plan->fits()) out.push_back(advice_of({next.words, next.why}, now, *plan));
    if (out.size() == kMostShown) break;
  }
  return out;
}

// Adds settings one after the other, cheapest first, until the run fits. Of two settings with a common key,
// keeps the setting with the smaller total. This can change when others have been added, so all are tried
// twice. Returns nullopt if the run does not fit with any of these sets.
std::optional<Advice> together(const Predictions& plans, const Prediction& now, std::vector<Advice> each) {
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
      const auto plan = plans(all.words);
      if (!plan || plan->total() > least || (replaces && plan->total() == least)) continue;
      if (plan->fits()) return advice_of({all.words, all.why}, now, *plan);
      least = plan->total();
      chosen = std::move(tried);
    }
  }
  return std::nullopt;
}

// --- the largest value that fits ---

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

// Returns the numbers of GPUs to try: powers of two or, with a global batch size, all numbers that can divide
// it.
std::vector<std::int64_t> counts_of_gpus(const TrainingSettings& training) {
  std::vector<std::int64_t> out;
  for (std::int64_t count = 1; count <= 1024; count += training.global_batch_size ? 1 : count)
    if (accumulation_for(training, count).ok()) out.push_back(count);
  return out;
}

}  // namespace

Result<std::vector<Advice>> advise(const LoadWith& load, const PredictionRequest& request,
                                   const Prediction& now) {
  ASSIGN_OR_RETURN(auto config, load({}));
  const std::unique_ptr<Task> task = make_task(config.settings.task);
  if (auto opened = task->open({config.settings, "", nullptr}); !opened.ok()) return opened.status();
  const Predictions plans(load, request, *task);
  Machine machine = {true, has_fp8(request.gpu), request.num_gpus, 0};
  if (now.evaluation > 0 && now.evaluation_rows > 1)
    machine.evaluation_rows =
        std::min(config.settings.training.per_device_train_batch_size, now.evaluation_rows / 2);
  std::vector<Advice> each = singles(ideas_for(config.settings, *task, machine), plans, now);
  std::erase_if(each, [](const Advice& one) { return one.saves < 0; });
  std::vector<Advice> out;
  if (!now.fits() && std::ranges::none_of(each, &Advice::fits)) {
    for (const std::size_t size : {2, 3})
      if (out.empty()) out = fitting(plans, now, each, size);
    if (out.empty()) {
      if (auto all = together(plans, now, each)) out.push_back(std::move(*all));
    }
  }
  // Settings that save little alone are only used in combinations: two peaks may be nearly the same.
  for (Advice& alone : each)
    if (alone.saves >= kWorthSaving) out.push_back(std::move(alone));
  sort_advice(out);
  return out;
}

namespace {

std::int64_t need_of_steps(const Prediction& plan) {
  return plan.cpu ? plan.memory.allocated : plan.memory.reserved + plan.gpu.context;
}
std::int64_t need_of_evaluations(const Prediction& plan) { return plan.cpu ? plan.peak : plan.total(); }

// Returns the words as on a command line, where keys need no prefix `training.`.
std::string words_text(const std::vector<std::string>& words) {
  constexpr std::string_view kSection = "training.";
  std::string out;
  for (const std::string& word : words)
    out += (out.empty() ? "" : " ") + (word.starts_with(kSection) ? word.substr(kSection.size()) : word);
  return out;
}

std::string help_text(const Advice& advice, std::int64_t now, bool timed) {
  const double percent = std::round(100 * (advice.slower - 1)) + 0.0;  // + 0.0: no "-0%"
  return words_text(advice.words) + " (" + bytes_text(now - advice.saves) + " instead of " + bytes_text(now) +
         (timed ? ", " + std::string(percent >= 0 ? "+" : "") + fixed(percent, 0) + "% time" : "") + ": " +
         advice.why + ")";
}

// Returns memory_help() with figures from plans, or nullopt if nothing could be planned.
std::optional<std::vector<std::string>> planned_help(const FullDevice& full, const LoadWith& load,
                                                     const std::vector<Idea>& ideas) {
  const Prediction& now = *full.plan;
  PredictionRequest request;
  request.gpu = now.gpu, request.cpu = now.cpu;
  request.num_gpus = now.num_gpus, request.launch_seconds = now.launch_seconds;
  const std::unique_ptr<Task> task = make_task(full.settings.task);
  if (!task->open({full.settings, "", nullptr}).ok()) return std::nullopt;
  const Need need = full.evaluating ? need_of_evaluations : need_of_steps;
  std::vector<Advice> advice = singles(ideas, Predictions(load, request, *task), now, need);
  if (advice.empty()) return std::nullopt;
  const bool smaller = advice.front().words == ideas.front().words &&
                       advice.front().relief == (full.evaluating ? Relief::evaluation : Relief::micro_batch);
  std::optional<Advice> first;
  if (smaller) {
    first = advice.front();
    advice.erase(advice.begin());
  }
  // Even smaller micro-batches are suggested only if half a micro-batch does not fit the GPU.
  const bool half_fits = now.cpu || (first && first->fits);
  std::erase_if(advice, [&](const Advice& each) {
    return each.saves < kWorthSaving || (half_fits && each.relief == Relief::micro_batch);
  });
  sort_advice(advice);
  std::vector<std::string> out;
  if (first && first->saves >= kWorthSaving) out.push_back(help_text(*first, need(now), !now.cpu));
  for (const Advice& each : advice) out.push_back(help_text(each, need(now), !now.cpu));
  if (first && first->saves < 0 && first->sums > 0)
    out.push_back("not " + words_text(first->words) + ": smaller micro-batches save " +
                  bytes_text(first->sums + first->saves) + ", and fp32 sums of gradients add " +
                  bytes_text(first->sums));
  return out;
}

}  // namespace

std::vector<std::string> memory_help(const FullDevice& full) {
  const TrainingSettings& training = full.settings.training;
  const std::int64_t half = full.evaluating ? training.per_device_eval_batch_size / 2 : 0;
  const Settings base = with_absolute_paths(full.settings);
  const std::string yaml = to_yaml(base);
  const LoadWith load = [&](const std::vector<std::string>& words) { return parse(yaml, "config", words); };
  std::vector<Idea> ideas = ideas_for(base, full.task, {full.gpu, full.fp8, full.ranks, half});
  std::erase_if(ideas, [&](const Idea& idea) {
    if (full.evaluating && (idea.relief == Relief::micro_batch || idea.relief == Relief::step)) return true;
    const auto config = load(idea.words);  // the model may have no such key, or the run has this value
    return !config.ok() || differences(base, config->settings).empty();
  });
  if (full.plan != nullptr && !ideas.empty()) {
    try {
      if (auto lines = planned_help(full, load, ideas)) return std::move(*lines);
    } catch (const std::exception&) {  // the order without figures follows
    }
  }
  const bool sums =
      training.gradient_accumulation_steps == 1 && training.compute_dtype == ComputeType::bfloat16;
  std::vector<std::string> out;
  for (const Idea& idea : ideas) {
    const bool micro_batch = idea.relief == Relief::micro_batch;
    if (micro_batch && &idea != ideas.data()) continue;
    out.push_back(words_text(idea.words) + " (" + idea.why +
                  (micro_batch && sums ? "; fp32 sums of gradients add 4 bytes a parameter" : "") + ")");
  }
  return out;
}

Result<Solution> solve(Solve what, const LoadWith& load, const PredictionRequest& request) {
  ASSIGN_OR_RETURN(auto config, load({}));
  if (what == Solve::gpus) {
    Solution out;
    for (const std::int64_t count : counts_of_gpus(config.settings.training)) {
      PredictionRequest more = request;
      more.num_gpus = count;
      std::vector<std::string> words;
      if (count > 1) words.emplace_back("training.parallel=zero2");
      ASSIGN_OR_RETURN(auto with, load(words));
      ASSIGN_OR_RETURN(auto plan, make_plan(with.settings, more));
      if (!plan.fits()) continue;
      out.num_gpus = count;
      out.words = words;
      out.text =
          std::to_string(count) + (count > 1 ? " GPUs with parallel=zero2 are enough" : " GPU is enough");
      return out;
    }
    out.text = (config.settings.training.global_batch_size
                    ? "it does not fit as many GPUs as training.global_batch_size can be divided among"
                    : "it does not fit 1,024 GPUs either") +
               std::string(": what every GPU has whole, weights and activations, is too much");
    return out;
  }
  ASSIGN_OR_RETURN(auto key, key_of(what, config.settings));
  const auto word = [&](std::int64_t value) { return key.name + "=" + std::to_string(value); };
  Status problem;
  // Returns the bytes that the run needs, or the largest integer if it cannot be planned.
  const auto total = [&](std::int64_t multiple) {
    auto with = load({word(multiple * key.step)});
    auto plan = with.ok() ? make_plan(with->settings, request) : Result<Prediction>(with.status());
    if (plan.ok()) return plan->total();
    problem = plan.status();
    return std::numeric_limits<std::int64_t>::max();
  };
  // Doubles the value until it does not fit. Then interpolates linearly to the GPU's memory: bytes grow
  // nearly in proportion, so a few plans are enough.
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  std::int64_t good = 0, bad = std::max<std::int64_t>(key.now / key.step, 1), good_bytes = 0;
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
    beside = bytes <= request.gpu.memory;  // then the next value tried is one above the interpolated value
    if (beside)
      good = middle, good_bytes = bytes;
    else
      bad = middle, bad_bytes = bytes;
  }
  Solution out;
  out.num_gpus = request.num_gpus;
  if (good == 0) {
    out.text = word(key.step) + " does not fit either";
    return out;
  }
  out.words = {word(good * key.step)};
  out.text = out.words.front() + " fits, " + std::to_string(bad * key.step) +
             (problem.ok() ? " does not" : " cannot be planned (" + problem.message() + ")");
  return out;
}

}  // namespace octavo_train
