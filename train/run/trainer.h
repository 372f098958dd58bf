// The training loop of a run: steps, and between them metrics, evaluations and checkpoints.
//
// Other classes do the work: Stepper a step, DivergenceGuard decides if the weights are good, Progress logs
// speed, Checkpointer saves. This class has their order. At the end of a step its metrics are written, then
// it is evaluated, then saved, so that a checkpoint comes after everything else of its step.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/checkpointer.h"
#include "train/console/console.h"
#include "train/data/prefetch.h"
#include "train/run/divergence.h"
#include "train/run/outcome.h"
#include "train/run/progress.h"
#include "train/run/run.h"
#include "train/run/step.h"
#include "train/run/training_state.h"

#include <cstdint>
#include <optional>
#include <string>

namespace octavo_train {

class Trainer {
 public:
  // All arguments outlive it. `batches`: those of batch_source().
  Trainer(const RunConfig& config, Services& services, TrainingState& state, Prefetch<Batch> batches);

  // Trains until the last step, a signal, or an error.
  Result<Outcome> run();

  // The step, for a dry run and for figures of the steps that were done.
  [[nodiscard]] Stepper& stepper() { return stepper_; }

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

  const RunConfig& config_;
  Services& services_;
  ProcessGroup& process_group_;
  Heartbeat& console_;
  TrainingState& state_;
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
