// What is worth knowing about a run, as labelled values: the summary of one run and the rows of a comparison.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <optional>
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

// The same labels in the same order for every run.
std::vector<Fact> facts_of(const RunData& run);

struct Ending {
  std::string text;   // Finished
  std::string style;  // a class: good, fair, bad, open
};
Ending ending_of(const RunData& run);

// BDH · 25.3M parameters · cuda:0 NVIDIA H200
std::string subtitle_of(const RunData& run);

}  // namespace octavo::train
