// SPDX-License-Identifier: MIT
#include "train/run/evaluation.h"

#include "train/base/terminal_text.h"
#include "train/base/word_diff.h"
#include "train/console/signals.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::size_t kShownExamples = 3;  // on the terminal; the log has all

// Bytes that are not UTF-8 are replaced, as in the log.
std::string examples_text(const std::vector<Example>& examples) {
  nlohmann::json out = nlohmann::json::array();
  for (const Example& each : examples)
    out.push_back({each.number, each.name, each.reference, each.hypothesis});
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<Example> examples_in_order(const std::vector<std::string>& texts) {
  std::vector<Example> out;
  for (const std::string& text : texts) {
    for (const nlohmann::json& each : nlohmann::json::parse(text))
      out.push_back({each.at(1), each.at(2), each.at(3), each.at(0)});
  }
  std::ranges::stable_sort(out, {}, &Example::number);
  return out;
}

}  // namespace

std::optional<Tally> sum_over_ranks(ProcessGroup& process_group, std::optional<Tally> mine) {
  if (!process_group.grouped()) return mine;
  std::array<std::int64_t, 1> stopped{mine ? 0 : 1};
  process_group.max(stopped);
  if (stopped[0] != 0) return std::nullopt;
  std::vector<double> numbers = mine->sums;
  numbers.push_back(static_cast<double>(mine->units));
  process_group.sum(numbers);
  Tally all;
  all.units = static_cast<std::int64_t>(numbers.back());
  numbers.pop_back();
  all.sums = std::move(numbers);
  all.examples = examples_in_order(process_group.gather(examples_text(mine->examples)));
  return all;
}

std::optional<Evaluation> evaluate_task(Task& task, ProcessGroup& process_group,
                                        const torch::Device& device) {
  const auto all =
      sum_over_ranks(process_group, task.evaluate_shard({device, [] { return StopSignals::received() != 0; },
                                                         process_group.rank(), process_group.ranks()}));
  if (!all) return std::nullopt;
  return task.summarize(*all);
}

nlohmann::ordered_json evaluation_json(const Evaluation& result, const Unit& unit) {
  auto out = nlohmann::ordered_json::object(), better = out;
  for (const Metric& metric : result.metrics) {
    out[metric.name] = metric.value;
    better[metric.name] = metric.better == Better::lower ? "lower" : "higher";
  }
  out[unit.name] = result.units;
  out["better"] = better;
  for (const Example& each : result.examples)
    out["examples"].push_back(
        {{"name", each.name}, {"reference", each.reference}, {"hypothesis", each.hypothesis}});
  return out;
}

void show_examples(const std::vector<Example>& examples, Console& console) {
  for (std::size_t i = 0; i < std::min(examples.size(), kShownExamples); ++i) {
    const WordDiff pair = diff_for_terminal(examples[i].reference, examples[i].hypothesis);
    console.note("  " + terminal_text(examples[i].name));
    console.note("    said:        " + pair.reference);
    console.note("    transcribed: " + pair.hypothesis);
  }
}

}  // namespace octavo_train
