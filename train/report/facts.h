// The key facts of a run as labelled values, for the summary of one run and the rows of a comparison.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

struct Fact {
  enum class Better { neither, lower, higher };
  std::string label;
  std::string value;
  std::string note = {};
  std::optional<double> rank = {};  // the value that is compared between runs
  Better better = Better::neither;
  bool headline = false;  // shown large
};

// Returns the facts of a run, in a fixed order. Runs of different tasks have different labels.
std::vector<Fact> facts_of(const RunData& run);
// Returns the facts of several runs by rows. Every run has the same labels; the value is kUnknown if the run
// does not have the fact.
std::vector<std::vector<Fact>> facts_of(std::span<const RunData> runs);

}  // namespace octavo_train
