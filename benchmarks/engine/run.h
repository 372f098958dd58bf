// One invocation of the optimizer benchmark: checks the results of each row, then times it between copies.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/options.h"
#include "benchmarks/engine/report.h"

#include <string>
#include <vector>

namespace octavo::cli {

struct BenchResult {
  BenchRun run;
  std::vector<BenchSection> sections;
};

// Throws a Failure if nothing can be measured. The error of a single row is stored in its section.
BenchResult run_bench(const BenchFlags& flags);

// Returns "2 of 8 rows failed: flat name 8bit: …", or an empty string.
std::string errors_of(const std::vector<BenchSection>& sections);

}  // namespace octavo::cli
