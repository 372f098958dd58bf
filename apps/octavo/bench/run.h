// One invocation of the optimizer benchmark: checks what each row computes, then times it between copies.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/options.h"
#include "apps/octavo/bench/report.h"

#include <string>
#include <vector>

namespace octavo::cli {

struct BenchResult {
  BenchRun run;
  std::vector<BenchSection> sections;
};

// Throws a Failure where nothing can be measured; the error of a single row is in its section.
BenchResult run_bench(const BenchFlags& flags);

// "2 of 8 rows failed: flat name 8bit: …", or nothing.
std::string errors_of(const std::vector<BenchSection>& sections);

}  // namespace octavo::cli
