// What is worth knowing about a run, as labelled values: the summary of one run and the rows of a comparison.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

struct Fact {
  enum class Better { neither, lower, higher };
  std::string label;
  std::string value;
  std::string note = {};
  std::optional<double> rank = {};  // what is compared between runs
  Better better = Better::neither;
  bool headline = false;  // shown large
};

// Labels differ between runs of other tasks, and are in one order.
std::vector<Fact> facts_of(const RunData& run);
// The facts of several runs by rows: the same labels for every run, with nothing known where it has none.
std::vector<std::vector<Fact>> facts_of(std::span<const RunData> runs);

}  // namespace octavo::train
