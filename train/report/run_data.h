// Reads a run's folder leniently: its settings, its curves and its events. A line that is not a record is
// skipped and counted; a member of an unexpected type counts as missing.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

using Record = nlohmann::json;

// Return a member as a number or as a text, if it has this type. `path` is a JSON pointer: /memory/device.
std::optional<double> number_in(const Record& record, std::string_view path);
std::optional<std::string> text_in(const Record& record, std::string_view path);
// Returns the member `name` of the record itself. The name may be any text.
std::optional<double> number_of(const Record& record, const std::string& name);

struct Point {
  double x = 0;
  double y = 0;  // NaN where the run logged a number that was not finite
};
using Curve = std::vector<Point>;

// A metric of the evaluations other than the loss.
struct MetricCurve {
  std::string name;
  bool higher_is_better = false;
  Curve curve;
};

struct RunData {
  std::string path;
  std::string name;  // the folder's name; the path if it is not unique
  std::vector<std::pair<std::string, std::string>> settings;  // training.learning_rate, 0.001

  Record start;  // start record of the last session; null if there is none
  Record end;    // end record of the last session; null if there is none
  Record memory;
  std::vector<Record> evaluations, samples, checkpoints, stages, warnings, changes;

  Curve train_loss, lr, grad_norm, throughput, loss_scale, device_memory, host_memory, eval_loss;
  std::vector<MetricCurve> metrics;  // one per name

  Curve eval_difference;  // difference to the first run, at the steps that both evaluated

  std::int64_t records = 0;
  std::int64_t bad_lines = 0;
  std::int64_t sessions = 0;
  std::int64_t last_step = 0;
  std::string unit;  // unit of throughput, such as tokens; "units" if no record names it
  double units = 0;
  double skipped_steps = 0;
  double seconds = 0;  // from the first to the last record of each session, summed
  std::optional<double> began, last_seen;
  std::optional<double> device_peak, host_peak;
};

// Returns an error if the folder is not a run's folder. The error names the folder and what is missing.
Result<RunData> read_run(const std::string& folder);

}  // namespace octavo_train
