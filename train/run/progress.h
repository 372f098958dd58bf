// Logs the speed of a run: progress lines on the console, lines of metrics in the log, and the message of a
// run that will take hours.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/run/divergence.h"
#include "train/run/run.h"
#include "train/run/step.h"
#include "train/run/training_state.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace octavo_train {

// Measures the floating-point operations per second of a matmul on the CPU, in about 0.1 s.
double cpu_matmul_rate(ComputeType type);

// Returns how long the steps after `step` take if each takes `seconds`, and which settings would make the run
// shorter; empty if it is less than an hour. `shorter`: settings that make a step shorter; `how`: "about" or
// "at least".
std::string long_run_note(const Settings& settings, const std::string& shorter, std::int64_t step,
                          std::int64_t steps, double seconds, bool on_cpu, const std::string& how = "about");

// "12.3k tok/s".
std::string rate_text(double units_per_second, const Unit& unit);

class Progress {
 public:
  // All arguments outlive it.
  Progress(const RunConfig& config, const Services& services, TrainingState& state, const Stepper& stepper,
           const DivergenceGuard& guard);

  // Adds time that steps did not take: evaluations and checkpoints.
  void pause(double seconds) { paused_ += seconds; }
  // Sets the seconds of a measured step.
  void measured(double seconds) { pace_ = seconds; }
  void evaluated(const Metric& metric) { metric_ = metric; }
  [[nodiscard]] const std::optional<Metric>& metric() const { return metric_; }

  // Prints a progress line between the lines of metrics, if steps are slow.
  void show();
  // Writes a line of metrics to the log and the console.
  Status log();

  [[nodiscard]] double seconds() const;                        // since the beginning
  [[nodiscard]] double step_seconds() const { return pace_; }  // 0: not known yet
  struct Pace {
    double step_seconds = 0,
           data_waited = 0;  // data_waited: the part in which this process waited for batches
  };
  // Returns the mean without the first steps, in which libraries are set up; none if there were no others.
  [[nodiscard]] std::optional<Pace> settled() const;
  // Adds the mean traffic of a step to a record; nothing without a process group.
  void add_traffic(nlohmann::ordered_json& record) const;
  // A scope whose time belongs to no step: saving. The traffic before it is counted; Checkpointer drops its
  // own.
  class Pause {
   public:
    explicit Pause(Progress& progress);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Progress& progress_;
    std::chrono::steady_clock::time_point begin_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Rate {
    double units_per_second = 0, step_seconds = 0;  // 0: not known
  };
  // Since the last line of metrics.
  [[nodiscard]] Rate rate(Clock::time_point now) const;
  // If batches differ in size: the mean rows of a micro-batch and the share of padding, since the last line
  // of metrics.
  struct Shape {
    std::optional<double> rows, padding;
  };
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] std::string line(double loss, double units_per_second) const;

  // Adds the traffic so far to the steps' total.
  void count_traffic();
  static void put(nlohmann::ordered_json& record, const Traffic& traffic, std::int64_t steps);

  const RunConfig& config_;
  const Services& services_;
  TrainingState& state_;
  const Stepper& stepper_;
  const DivergenceGuard& guard_;
  RunState& counters_;
  const Unit unit_;
  const std::int64_t first_step_;
  Clock::time_point begin_, last_log_, last_shown_;
  double paused_ = 0;                                // since the last line of metrics
  double pace_ = 0;                                  // seconds per step, for the time left
  double settled_seconds_ = 0, settled_waited_ = 0;  // of lines of metrics after the first steps
  std::int64_t settled_steps_ = 0;
  std::int64_t units_logged_, step_logged_;  // in the last line of metrics
  BatchTotals totals_logged_;
  double waited_logged_ = 0;
  Traffic traffic_;  // of this process's steps, up to the last line of metrics
  Traffic sent_;     // counted since that line
  std::optional<Metric> metric_;
};

}  // namespace octavo_train
