// Formats the results of the optimizer benchmark: as JSON (an interface: scripts read the keys) or as a
// table.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/timing.h"

#include <octavo/backend.h>

#include <optional>
#include <string>
#include <vector>

namespace octavo::cli {

struct BenchRow {
  RunSpec run;
  Footprint bytes;
  std::string checksum;
  std::optional<Timing> timing;  // empty in a dry run or after an error
  std::string error;             // why the row was not timed
};

// The row of the gradient norm.
struct NormRow {
  Footprint bytes;  // the norm moves grad_bytes
  std::optional<Timing> timing;
  std::string error;
};

// The rows measured with one list of tensors.
struct BenchSection {
  std::string shape;
  double zeros = 0.0;  // share of rows that never have a gradient
  std::vector<BenchRow> rows;
  std::optional<NormRow> norm;

  // Returns "flat" or "flat, zeros 0.5".
  [[nodiscard]] std::string label() const;
};

// Facts that all rows share.
struct BenchRun {
  Device device;
  GpuReport gpus;
  std::string implementation;   // of the CPU code; a GPU has only one
  int threads = 1;              // CPU threads
  std::int64_t copy_bytes = 0;  // size of each buffer; 0 in a dry run
};

std::string json_report(const BenchRun& run, const std::vector<BenchSection>& sections);
std::string table_report(const BenchRun& run, const std::vector<BenchSection>& sections);

// Returns the optimizer and its format, for example "name 8bit".
std::string label(const RunSpec& run);

}  // namespace octavo::cli
