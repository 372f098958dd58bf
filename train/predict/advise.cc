// SPDX-License-Identifier: MIT
#include "train/predict/advise.h"

#include "train/base/numbers.h"
#include "train/config/checks.h"
#include "train/config/options.h"
#include "train/config/paths.h"

#include <fmt/format.h>
#include <octavo/layout.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace octavo_train {
namespace {

// The hardware that a run uses. What is advised depends on it and on the settings.
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
void add_states(const TrainingSettings& training, octavo::StateFormat state, std::vector<Advice>& out) {
  const double now = state_bytes_per_weight(training, training.optimizer.state);
  const double then = state_bytes_per_weight(training, state);
  if (then >= now) return;
  out.push_back(
      {{fmt::format("training.optimizer={}_{}", name(training.optimizer.algorithm), name(state))},
       fmt::format("{} bytes of state per weight instead of {}", significant(then, 3), significant(now, 3))});
}

// Adds smaller micro-batches that make the same step. The smallest divisor of the batch comes first.
void add_micro_batches(const TrainingSettings& training, const TaskText& task, std::vector<Advice>& out) {
  const std::int64_t rows = training.per_device_train_batch_size;
  std::int64_t least = 2;
  if (rows != kNoLimit && task.smaller_limits(least).empty())
    while (least < rows && rows % least != 0) ++least;
  for (const std::int64_t parts : {least, std::int64_t{4}, std::int64_t{8}}) {
    if (parts < least) continue;
    Advice smaller = {task.smaller_limits(parts),
                      fmt::format("the same step in micro-batches of 1/{}", parts), Relief::micro_batch};
    if (rows != kNoLimit && rows > 1 && rows % parts == 0)
      smaller.words.push_back(fmt::format("training.per_device_train_batch_size={}", rows / parts));
    if (smaller.words.empty()) break;
    if (!training.accumulation_is_auto)  // else global_batch_size sets the number of micro-batches
      smaller.words.push_back(fmt::format("training.gradient_accumulation_steps={}",
                                          training.gradient_accumulation_steps * parts));
    out.push_back(std::move(smaller));
  }
}

// Returns settings that may save memory, without figures, in the order used without a prediction.
std::vector<Advice> ideas_for(const Settings& settings, const TaskText& task, const Machine& machine) {
  const TrainingSettings& training = settings.training;
  std::vector<Advice> out;
  add_micro_batches(training, task, out);
  if (machine.evaluation_rows > 0)
    out.push_back({{fmt::format("training.per_device_eval_batch_size={}", machine.evaluation_rows)},
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

// Predicts the run with other settings. Returns nullopt if they are invalid together with the others or with
// the model.
using PredictWith = std::function<std::optional<Prediction>(const std::vector<std::string>& words)>;

// The data of `task` is open.
PredictWith predictions(const LoadWith& load, const PredictionRequest& request, const OpenTask& task) {
  return [&](const std::vector<std::string>& words) -> std::optional<Prediction> {
    auto prediction = predict_with(load, words, request, &task);
    if (!prediction.ok()) return std::nullopt;
    return std::move(*prediction);
  };
}

// Returns the bytes of device memory that a run needs in steps, in evaluations, or in both.
using Need = std::int64_t (*)(const Prediction&);

std::int64_t total_need(const Prediction& prediction) { return prediction.total(); }

// Adds the figures of the prediction with these settings.
Advice with_figures(Advice idea, const Prediction& now, const Prediction& then, Need need = total_need) {
  const bool timed = now.units_per_second > 0 && then.units_per_second > 0;
  idea.saves = need(now) - need(then);
  idea.slower = timed ? now.units_per_second / then.units_per_second : 1;
  idea.fits = need(then) <= now.gpu.memory;
  idea.sums = std::max<std::int64_t>(then.gradient_sums - now.gradient_sums, 0);
  if (idea.relief == Relief::micro_batch && idea.sums > 0)
    idea.why += "; fp32 sums of gradients add " + bytes_text(idea.sums);
  return idea;
}

// Returns the ideas that can be predicted, with figures.
std::vector<Advice> singles(const std::vector<Advice>& ideas, const PredictWith& predicted,
                            const Prediction& now, Need need = total_need) {
  std::vector<Advice> out;
  for (const Advice& idea : ideas)
    if (const auto then = predicted(idea.words)) out.push_back(with_figures(idea, now, *then, need));
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

// Returns the combination of both. Its savings and cost are estimates until it is predicted.
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
std::vector<Advice> fitting(const PredictWith& predicted, const Prediction& now,
                            const std::vector<Advice>& each, std::size_t size) {
  constexpr std::size_t kMostTried = 24, kMostShown = 3;
  const std::int64_t needed = now.total() - now.gpu.memory;
  std::vector<Advice> candidates = combinations(each, size);
  std::ranges::stable_sort(candidates, [&](const Advice& a, const Advice& b) {
    const bool enough = a.saves >= needed;
    if (enough != (b.saves >= needed)) return enough;
    return enough ? a.slower < b.slower : a.saves > b.saves;
  });
  candidates.resize(std::min(candidates.size(), kMostTried));
  std::vector<Advice> out;
  for (const Advice& next : candidates) {
    const auto then = predicted(next.words);
    if (then && then->fits()) out.push_back(with_figures(next, now, *then));
    if (out.size() == kMostShown) break;
  }
  return out;
}

// Adds settings one after the other, cheapest first, until the run fits. Of two settings with a common key,
// keeps the setting with the smaller total. This can change when others have been added, so all are tried
// twice. Returns nullopt if the run does not fit with any of these sets.
std::optional<Advice> together(const PredictWith& predicted, const Prediction& now,
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
      const auto then = predicted(all.words);
      if (!then || then->total() > least || (replaces && then->total() == least)) continue;
      if (then->fits()) return with_figures(all, now, *then);
      least = then->total();
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
  ASSIGN_OR_RETURN(const auto task, open_task(settings));
  const TaskText text = task.task->text();
  const SizeKey key = what == Solve::length ? text.length_key : text.model_key;
  if (key.key.empty())
    return invalid_error("--solve: the task {} has no key for the {}; use --solve batch or --solve gpus",
                         settings.task, what == Solve::length ? "length of a sample" : "size of this model");
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
  ASSIGN_OR_RETURN(const auto task, open_task(config.settings));
  const PredictWith predicted = predictions(load, request, task);
  Machine machine = {true, has_fp8(request.gpu), request.num_gpus, 0};
  if (now.evaluation > 0 && now.evaluation_rows > 1)
    machine.evaluation_rows =
        std::min(config.settings.training.per_device_train_batch_size, now.evaluation_rows / 2);
  std::vector<Advice> each = singles(ideas_for(config.settings, task.task->text(), machine), predicted, now);
  std::erase_if(each, [](const Advice& one) { return one.saves < 0; });
  std::vector<Advice> out;
  if (!now.fits() && std::ranges::none_of(each, &Advice::fits)) {
    for (const std::size_t size : {2, 3})
      if (out.empty()) out = fitting(predicted, now, each, size);
    if (out.empty()) {
      if (auto all = together(predicted, now, each)) out.push_back(std::move(*all));
    }
  }
  // Settings that save little alone are only used in combinations: two peaks may be nearly the same.
  for (Advice& alone : each)
    if (alone.saves >= kWorthSaving) out.push_back(std::move(alone));
  sort_advice(out);
  return out;
}

namespace {

std::int64_t need_of_steps(const Prediction& p) {
  return p.cpu ? p.memory.allocated : p.memory.reserved + p.gpu.context;
}
std::int64_t need_of_evaluations(const Prediction& p) { return p.cpu ? p.peak : p.total(); }

// Returns the words as on a command line, where keys need no prefix `training.`.
std::string words_text(const std::vector<std::string>& words) {
  constexpr std::string_view kSection = "training.";
  std::string out;
  for (const std::string& word : words)
    out += (out.empty() ? "" : " ") + (word.starts_with(kSection) ? word.substr(kSection.size()) : word);
  return out;
}

std::string help_text(const Advice& advice, std::int64_t now, bool timed) {
  return fmt::format("{} ({} instead of {}{}: {})", words_text(advice.words), bytes_text(now - advice.saves),
                     bytes_text(now), timed ? ", " + advice.time_text() + " time" : "", advice.why);
}

// Returns memory_help() with predicted figures, or nullopt if nothing could be predicted.
std::optional<std::vector<std::string>> predicted_help(const FullDevice& full, const LoadWith& load,
                                                       const std::vector<Advice>& ideas) {
  const Prediction& now = *full.prediction;
  PredictionRequest request;
  request.gpu = now.gpu, request.cpu = now.cpu;
  request.num_gpus = now.num_gpus, request.launch_seconds = now.launch_seconds;
  const auto task = open_task(full.settings);
  if (!task.ok()) return std::nullopt;
  const Need need = full.evaluating ? need_of_evaluations : need_of_steps;
  std::vector<Advice> advice = singles(ideas, predictions(load, request, *task), now, need);
  if (advice.empty()) return std::nullopt;
  std::optional<Advice> first;  // the smaller batch
  if (advice.front().words == ideas.front().words &&
      advice.front().relief == (full.evaluating ? Relief::evaluation : Relief::micro_batch)) {
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
    out.push_back(fmt::format("not {}: smaller micro-batches save {}, and fp32 sums of gradients add {}",
                              words_text(first->words), bytes_text(first->sums + first->saves),
                              bytes_text(first->sums)));
  return out;
}

}  // namespace

std::string Advice::time_text() const {
  const double percent = std::round(100 * (slower - 1)) + 0.0;  // + 0.0 avoids "-0%"
  return fmt::format("{}{}%", percent >= 0 ? "+" : "", fixed(percent, 0));
}

std::vector<std::string> memory_help(const FullDevice& full) {
  const TrainingSettings& training = full.settings.training;
  const std::int64_t half = full.evaluating ? training.per_device_eval_batch_size / 2 : 0;
  const Settings base = with_absolute_paths(full.settings);
  const std::string yaml = to_yaml(base);
  const LoadWith load = [&](const std::vector<std::string>& words) { return parse(yaml, "config", words); };
  std::vector<Advice> ideas = ideas_for(base, full.task.text(), {full.gpu, full.fp8, full.ranks, half});
  std::erase_if(ideas, [&](const Advice& idea) {
    if (full.evaluating && (idea.relief == Relief::micro_batch || idea.relief == Relief::step)) return true;
    const auto config = load(idea.words);  // the model may have no such key, or the run has this value
    return !config.ok() || differences(base, config->settings).empty();
  });
  if (full.prediction != nullptr && !ideas.empty()) {
    try {
      if (auto lines = predicted_help(full, load, ideas)) return std::move(*lines);
    } catch (const std::exception&) {  // the order without figures follows
    }
  }
  const bool sums =
      training.gradient_accumulation_steps == 1 && training.compute_dtype == ComputeType::bfloat16;
  std::vector<std::string> out;
  for (const Advice& idea : ideas) {
    const bool micro_batch = idea.relief == Relief::micro_batch;
    if (micro_batch && &idea != ideas.data()) continue;
    out.push_back(words_text(idea.words) + " (" + idea.why +
                  (micro_batch && sums ? "; fp32 sums of gradients add 4 bytes a parameter" : "") + ")");
  }
  return out;
}

namespace {

Result<Solution> solve_gpus(const LoadWith& load, const PredictionRequest& request) {
  ASSIGN_OR_RETURN(const auto config, load({}));
  for (const std::int64_t count : counts_of_gpus(config.settings.training)) {
    PredictionRequest more = request;
    more.num_gpus = count;
    std::vector<std::string> words;
    if (count > 1) words.emplace_back("training.parallel=zero2");
    ASSIGN_OR_RETURN(const auto prediction, predict_with(load, words, more));
    if (prediction.fits())
      return Solution{
          count == 1 ? "1 GPU is enough" : fmt::format("{} GPUs with parallel=zero2 are enough", count),
          words, count};
  }
  const char* const why =
      config.settings.training.global_batch_size
          ? "it does not fit as many GPUs as training.global_batch_size can be divided among"
          : "it does not fit 1,024 GPUs either";
  return Solution{
      fmt::format("{}: what every GPU has whole, weights and activations, is too much", why), {}, 1};
}

}  // namespace

Result<Solution> solve(Solve what, const LoadWith& load, const PredictionRequest& request) {
  if (what == Solve::gpus) return solve_gpus(load, request);
  ASSIGN_OR_RETURN(const auto config, load({}));
  ASSIGN_OR_RETURN(const auto key, key_of(what, config.settings));
  const auto word = [&](std::int64_t value) { return fmt::format("{}={}", key.name, value); };
  Status problem;
  // Returns the bytes that the run needs, or the largest integer if it cannot be predicted.
  const auto total = [&](std::int64_t multiple) {
    const auto prediction = predict_with(load, {word(multiple * key.step)}, request);
    if (prediction.ok()) return prediction->total();
    problem = prediction.status();
    return std::numeric_limits<std::int64_t>::max();
  };
  // Doubles the value until it does not fit. Then interpolates linearly to the GPU's memory: bytes grow
  // nearly in proportion, so a few predictions are enough.
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  std::int64_t good = 0, bad = std::max<std::int64_t>(key.now / key.step, 1), good_bytes = 0;
  std::int64_t bad_bytes = total(bad);
  while (bad <= kMost && bad_bytes <= request.gpu.memory) {
    good_bytes = bad_bytes;
    good = std::exchange(bad, 2 * bad);
    bad_bytes = total(bad);
  }
  if (good == 0 && !problem.ok()) return problem;
  for (bool fitted = false; bad - good > 1;) {
    const double share =
        static_cast<double>(request.gpu.memory - good_bytes) / static_cast<double>(bad_bytes - good_bytes);
    const bool useful = good > 0 && problem.ok();
    // After a value that fits, the next value tried is one above the interpolated value.
    std::int64_t middle =
        useful ? good + static_cast<std::int64_t>(share * static_cast<double>(bad - good)) + (fitted ? 1 : 0)
               : good + (bad - good) / 2;
    middle = std::clamp(middle, good + 1, bad - 1);
    const std::int64_t bytes = total(middle);
    fitted = bytes <= request.gpu.memory;
    (fitted ? good : bad) = middle;
    (fitted ? good_bytes : bad_bytes) = bytes;
  }
  if (good == 0) return Solution{word(key.step) + " does not fit either", {}, request.num_gpus};
  const std::string largest = word(good * key.step);
  return Solution{
      fmt::format("{} fits, {} {}", largest, bad * key.step,
                  problem.ok() ? "does not" : fmt::format("cannot be planned ({})", problem.message())),
      {largest},
      request.num_gpus};
}

}  // namespace octavo_train
