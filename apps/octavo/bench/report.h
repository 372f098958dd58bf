// What the optimizer benchmark prints: rows as JSON (an interface: scripts read the keys) or as a table.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/timing.h"

#include <octavo/backend.h>

#include <optional>
#include <string>
#include <vector>

namespace octavo::cli {

struct BenchRow {
  RunSpec run;
  Footprint bytes;
  std::string checksum;
  std::optional<Timing> timing;  // none in a dry run, or with an error
  std::string error;             // what kept it from being timed
};

// The norm of the gradients.
struct NormRow {
  Footprint bytes;  // it moves grad_bytes
  std::optional<Timing> timing;
  std::string error;
};

// Rows over one list of tensors.
struct BenchSection {
  std::string shape;
  double zeros = 0.0;  // of its rows: the share that never has a gradient
  std::vector<BenchRow> rows;
  std::optional<NormRow> norm;

  // "flat", "flat, zeros 0.5".
  [[nodiscard]] std::string label() const;
};

// What all rows have in common.
struct BenchRun {
  Device device;
  GpuReport gpus;
  std::string implementation;   // of the CPU; a GPU has one
  int threads = 1;              // of the CPU
  std::int64_t copy_bytes = 0;  // each side; 0 in a dry run
};

std::string json_report(const BenchRun& run, const std::vector<BenchSection>& sections);
std::string table_report(const BenchRun& run, const std::vector<BenchSection>& sections);

// The optimizer and its format, as in "name 8bit".
std::string label(const RunSpec& run);

}  // namespace octavo::cli
