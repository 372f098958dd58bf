// What a run says of its speed: the lines of progress and the lines of metrics.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"
#include "train/run/divergence_guard.h"
#include "train/run/run.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <optional>
#include <string>

namespace octavo::train {

// "12.3k tok/s".
std::string rate_text(double units_per_second, const Unit& unit);

class Progress {
 public:
  Progress(Run& run, const DivergenceGuard& guard);

  // Time that is not the steps' own: evaluations and checkpoints.
  void pause(double seconds) { paused_ += seconds; }
  // A step was measured to take so long.
  void measured(double seconds) { pace_ = seconds; }
  void evaluated(const Metric& metric) { metric_ = metric; }
  [[nodiscard]] const std::optional<Metric>& metric() const { return metric_; }

  // Between the lines of metrics, where steps are slow.
  void show();
  // A line of metrics for the log and the console.
  Status log();

  [[nodiscard]] double seconds() const;                        // since the beginning
  [[nodiscard]] double step_seconds() const { return pace_; }  // 0: not known yet
  struct Pace {
    double step_seconds = 0, data_waited = 0;  // of the first, what this process waited for its batches
  };
  // In the mean, without the first steps, which set libraries up; none: there were no others.
  [[nodiscard]] std::optional<Pace> settled() const;
  // Puts what a step communicated in the mean of this process into a record; nothing without a group.
  void add_traffic(nlohmann::ordered_json& record) const;
  // Counts what the steps have sent so far. Before anything else is sent that is no step's.
  void count_traffic();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rate {
    double units_per_second = 0, step_seconds = 0;  // 0: not known
  };
  // Since the last line of metrics.
  [[nodiscard]] Rate rate(Clock::time_point now) const;
  // Where batches differ: rows of a pass in the mean, and how much of their length is padding; since then
  // too.
  struct Shape {
    std::optional<double> rows, padding;
  };
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] std::string line(double loss, double units_per_second) const;

  static void put(nlohmann::ordered_json& record, const Traffic& traffic, std::int64_t steps);

  Run& run_;
  Console& console_;
  const DivergenceGuard& guard_;
  RunState& counters_;
  const Unit unit_;
  const std::int64_t first_step_;
  Clock::time_point begin_, last_log_, last_shown_;
  double paused_ = 0;                                // since the last line of metrics
  double pace_ = 0;                                  // seconds per step, for the time left
  double settled_seconds_ = 0, settled_waited_ = 0;  // of lines of metrics behind the first steps
  std::int64_t settled_steps_ = 0;
  std::int64_t units_logged_, step_logged_;  // in the last line of metrics
  BatchTotals fed_logged_;
  double waited_logged_ = 0;
  Traffic traffic_;  // of this process's steps, up to the last line of metrics
  Traffic sent_;     // since then, as far as it was counted
  std::optional<Metric> metric_;
};

}  // namespace octavo::train
