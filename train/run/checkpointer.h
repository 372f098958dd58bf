// Saves a run's checkpoints, decides which of them are kept, and writes the config.yaml next to them. All
// ranks of a run call it together; rank 0 writes and decides.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/run/divergence.h"
#include "train/run/run.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

class Checkpointer {
 public:
  Checkpointer(Run& run, const DivergenceGuard& guard);

  // Why a checkpoint is saved: it is the run's turn, or its metric alone.
  enum class Reason { due, best };
  // Saves the current step, unless it is saved, removes what is not kept, and writes a record to the log.
  // While rank 0 writes, the watchdog of ranks waits for it.
  Status save(Reason reason);
  // Takes the evaluation of the current step, for its checkpoint. An error if it lacks the metric of
  // save_best.
  Status add_evaluation(const std::vector<Metric>& metrics);
  // Returns true if that evaluation makes the current step one of the best, by save_best. It is false while
  // steps are skipped: the weights are in doubt.
  [[nodiscard]] bool is_best() const { return evaluated_step_ == counters_.step && best_; }
  [[nodiscard]] std::string best_text() const;  // ", the best loss so far"
  // Tries to save the current step although the run has failed. It writes nothing to the log, which may be
  // the reason of the failure, and needs no other rank. Returns where the step is saved, as the end of a
  // message, or an empty text.
  std::string rescue();
  // Returns the end of that message if nothing could be saved: the last good checkpoint.
  [[nodiscard]] std::string last_good_checkpoint_text() const;
  // Called with the first metrics or the first checkpoint, so that a run that fails at once has changed
  // nothing. A config.yaml with other settings is kept under another name.
  Status write_config();

  [[nodiscard]] const std::string& newest() const { return newest_; }  // its path
  [[nodiscard]] double seconds() const { return seconds_; }            // spent on saving
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  Status write(std::span<const SavedComponent> parts, bool only_best);
  void set_newest(const std::string& checkpoint);
  [[nodiscard]] bool among_best() const;
  void remove_superseded();
  [[nodiscard]] const Metric* best_metric() const;  // null: not evaluated at this step, or no save_best

  Run& run_;
  const DivergenceGuard& guard_;
  const RunState& counters_;
  std::string newest_;
  std::optional<EvaluationRecord> evaluation_;
  std::int64_t evaluated_step_ = -1;
  bool best_ = false;  // that evaluation
  std::int64_t saved_step_ = -1, saved_bytes_ = 0;
  double seconds_ = 0;
  bool failed_ = false, warned_ = false, config_written_ = false;
};

}  // namespace octavo_train
