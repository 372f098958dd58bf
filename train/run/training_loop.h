// The training loop of a run: steps, and between them metrics, evaluations and checkpoints.
//
// Other classes do the work: Stepper a step, DivergenceGuard decides if the weights are good, Progress logs
// speed, Checkpointer saves. This class has their order. At the end of a step its metrics are written, then
// it is evaluated, then saved, so that a checkpoint comes after everything else of its step.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/checkpointer.h"
#include "train/console/heartbeat.h"
#include "train/run/divergence.h"
#include "train/run/outcome.h"
#include "train/run/progress.h"
#include "train/run/run.h"
#include "train/run/step.h"

#include <optional>

namespace octavo_train {

class TrainingLoop {
 public:
  explicit TrainingLoop(Run& run);

  // Trains until the last step, a signal, or an error.
  Result<Outcome> run();

  // Memory at the peak of a step. None before the second step of this process.
  [[nodiscard]] const std::optional<MemoryByOwner>& measured_memory() const { return stepper_.memory(); }
  // Steps that this process has done.
  [[nodiscard]] std::int64_t steps_done() const { return stepper_.done(); }

 private:
  Status steps(Outcome& outcome);
  void note_long_run_on_cpu();  // before the first step
  void note_long_run(double step_seconds, const std::string& how, const std::string& why = {});
  Status read(bool drain);
  Status at_step_end(bool last);
  Status log_memory();
  Status evaluate();
  Status next_stage();
  Status finish(Outcome& outcome);
  [[nodiscard]] std::int64_t first_step_of_resume() const;
  Status write_end(const Outcome& outcome);
  Result<Outcome> failed(const Status& status);
  void record_failure(bool diverged, const std::string& message);
  std::string rescue();
  [[nodiscard]] bool due(const std::optional<std::int64_t>& every) const;
  [[nodiscard]] bool evaluation_due() const;

  Run& run_;
  Heartbeat& console_;
  RunState& counters_;
  Stepper stepper_;
  DivergenceGuard guard_;
  Progress progress_;
  Checkpointer checkpointer_;
  double evaluation_seconds_ = 0;
  bool save_pending_ = false;  // saving is put off while steps are skipped: the weights may be ruined
  bool evaluating_ = false;
  bool cut_short_ = false;       // a signal stopped the evaluation, on any rank
  bool another_failed_ = false;  // the run ends because of another rank
};

}  // namespace octavo_train
