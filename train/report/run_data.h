// What a run's folder says: its settings, its curves and its events, read leniently. A line that is no record
// is skipped and counted; a member of an unexpected type counts as missing.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo::train {

using Record = nlohmann::json;

// A member as a number or a text, if it is one. `path` is a JSON pointer: /memory/device.
std::optional<double> number_in(const Record& record, std::string_view path);
std::optional<std::string> text_in(const Record& record, std::string_view path);
// A member of the record itself, by any name.
std::optional<double> number_of(const Record& record, const std::string& name);

struct Point {
  double x = 0;
  double y = 0;  // NaN where the run logged a number that was not finite
};
using Curve = std::vector<Point>;

// What evaluations give besides the loss.
struct MetricCurve {
  std::string name;
  bool higher_is_better = false;
  Curve curve;
};

struct RunData {
  std::string path;
  std::string name;                                           // the folder's own, unless two runs share it
  std::vector<std::pair<std::string, std::string>> settings;  // training.learning_rate, 0.001

  Record start;  // the last session's; null where no line has said it
  Record end;    // how the last session ended; null where it did not
  Record memory;
  std::vector<Record> evaluations, samples, checkpoints, stages, warnings, changes;

  Curve train_loss, lr, grad_norm, throughput, loss_scale, device_memory, host_memory, eval_loss;
  std::vector<MetricCurve> metrics;  // by name

  Curve eval_difference;  // to the first of several runs, at the steps that both evaluated

  std::int64_t records = 0;
  std::int64_t bad_lines = 0;
  std::int64_t sessions = 0;
  std::int64_t last_step = 0;
  std::string unit;  // of throughput: tokens; "units" where no record says
  double units = 0;
  double skipped_steps = 0;
  double seconds = 0;  // from the first to the last record of each session
  std::optional<double> began, last_seen;
  std::optional<double> device_peak, host_peak;
};

// An error where the folder is no run: it names the folder and what it lacks.
Result<RunData> read_run(const std::string& folder);

}  // namespace octavo::train
