// What the optimizer benchmark prints: rows as JSON (an interface: scripts read the keys) or as a table.
// SPDX-License-Identifier: MIT
#pragma once

#include "bench_workload.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::cli {

struct Timing {
  double ms_median = 0.0;
  double ms_min = 0.0;
  double copy_gb_per_s = 0.0;  // around the same time
};

struct BenchRow {
  RunSpec run;
  Footprint bytes;
  std::string checksum;
  std::optional<Timing> timing;  // none in a dry run
};

// What all rows have in common.
struct BenchRun {
  std::string shape;
  std::string device;
  std::string implementation;
  int threads = 1;
  std::int64_t copy_bytes = 0;  // each side; 0 in a dry run
};

std::string json_report(const BenchRun& run, const std::vector<BenchRow>& rows);
std::string table_report(const BenchRun& run, const std::vector<BenchRow>& rows);

// {"model", "cores", "features"}.
nlohmann::ordered_json cpu_json();

// Says on stderr what is running: one line rewritten on a terminal, a line each elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void say(std::string_view what);
  // A line that stays.
  void note(std::string_view what);

 private:
  void clear();
  bool terminal_;
};

}  // namespace octavo::cli
