// The training loop over a session: steps, and between them metrics, evaluations and checkpoints.
//
// The loop does not wait for the device within a step: it reads the numbers of a step while the next one runs
// (readout.h). At the end of a step metrics are written first, then it is evaluated, then saved, so that a
// checkpoint comes after everything else of its step.
// SPDX-License-Identifier: MIT
#pragma once

#include "device.h"
#include "heartbeat.h"
#include "readout.h"
#include "session.h"
#include "trainer.h"

#include <chrono>
#include <deque>
#include <vector>

namespace octavo::train {

class Loop {
 public:
  Loop(Session& session, Heartbeat& console);

  // Trains until the last step, a signal, or an error.
  Result<Outcome> run();

  // Memory at the peak of a step. None before the second step of this process.
  [[nodiscard]] const std::optional<MemoryByOwner>& measured_memory() const { return owners_; }
  // Steps that this process has done.
  [[nodiscard]] std::int64_t steps_done() const { return steps_here_; }

 private:
  using Clock = std::chrono::steady_clock;

  Status steps(Outcome& outcome);
  void step();
  void passes_and_update(std::int64_t number);
  void measure_memory();
  Status read(bool drain);
  Status at_step_end(bool last);
  Status log_metrics();
  Status evaluate_now();
  Status save_now();
  Status save_files();
  Status write_config();
  [[nodiscard]] bool diverged() const;
  [[nodiscard]] bool weights_in_doubt() const;
  Result<Outcome> failed(const Status& status);
  [[nodiscard]] Status explained(const c10::Error& error) const;
  std::string rescue();
  [[nodiscard]] MemoryByOwner memory_now() const;
  [[nodiscard]] bool evaluation_due() const;
  Status next_stage();
  Status finish(Outcome& outcome);
  [[nodiscard]] bool due(const std::optional<std::int64_t>& every) const;
  void tally_time();
  void doing(std::int64_t step, const std::string& what);
  void show_progress();
  struct Rate {
    double tokens_per_second = 0, step_seconds = 0;  // 0: not known
  };
  // Since the last line of metrics.
  [[nodiscard]] Rate rate(Clock::time_point now) const;
  [[nodiscard]] std::string progress_line(double loss, double tokens_per_second) const;
  [[nodiscard]] std::string left_to_go_on_from() const;

  Session& session_;
  Heartbeat& console_;
  RunState& state_;
  Readout readout_;
  StepNumbers last_;  // of the newest step that was read
  std::deque<std::vector<Stopwatch>> watches_;
  std::optional<MemoryByOwner> owners_;

  Clock::time_point begin_, last_log_, last_shown_;
  double paused_ = 0;  // seconds of evaluations and checkpoints since the last line of metrics
  double evaluation_seconds_ = 0, checkpoint_seconds_ = 0;  // since the beginning
  double computing_ = 0;                                    // seconds of passes and steps
  double pace_ = 0;  // seconds per step, for the time left; 0: not known yet
  std::int64_t tokens_logged_ = 0, steps_here_ = 0;
  std::int64_t saved_step_ = -1, saved_bytes_ = 0;
  std::int64_t first_bad_ = 0;  // the first of the steps that are being skipped
  bool save_pending_ = false;   // saving is put off while steps are skipped: the weights may be ruined
  bool save_failed_ = false, updating_ = false, evaluating_ = false;
  bool config_written_ = false, save_warned_ = false;
  std::string checkpoint_;
  std::optional<double> eval_loss_;
};

}  // namespace octavo::train
