// The checkpoints of a run, which of them are kept, and the config.yaml beside them. All ranks of a run call
// it alike; rank 0 writes and decides.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/heartbeat.h"
#include "train/run/divergence_guard.h"
#include "train/run/session.h"

#include <octavo/status.h>

#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

class Saver {
 public:
  Saver(Session& session, Heartbeat& console, const Health& health);

  // Why a checkpoint is saved: it is the run's turn, or its metric alone.
  enum class Reason { due, best };
  // Saves the current step, unless it is saved, removes what is not kept, and writes that to the log.
  Status save(Reason reason);
  // The evaluation of the current step, for its checkpoint. An error where it lacks the metric of save_best.
  Status evaluated(const std::vector<Metric>& metrics);
  // Whether that evaluation makes it one of the best, by save_best. Not while steps are skipped: the weights
  // are in doubt.
  [[nodiscard]] bool is_best() const { return evaluated_step_ == state_.step && best_; }
  [[nodiscard]] std::string best_text() const;  // what is said of it: ", the best loss so far"
  // Tries to save the current step although the run has failed; writes nothing to the log, which may be why
  // it did. Returns where it is saved, as the end of a message, or nothing. No other rank is needed for it.
  std::string rescue();
  // The end of that message where nothing could be saved.
  [[nodiscard]] std::string left_to_go_on_from() const;
  // Called with the first metrics or the first checkpoint, so that a run that fails at once has changed
  // nothing. If config.yaml is there with other settings, it is kept under another name.
  Status write_config();

  [[nodiscard]] const std::string& newest() const { return checkpoint_; }  // its path
  [[nodiscard]] double seconds() const { return seconds_; }                // spent on them
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  Status save_files(Reason reason);
  Status take(const Result<SavedCheckpoint>& saved);
  void note_saved(const SavedCheckpoint& saved);
  void is_newest(const std::string& checkpoint);
  [[nodiscard]] bool among_best() const;
  void keep_best_and_newest();
  [[nodiscard]] const Metric* best_metric() const;  // null: not evaluated at this step, or no save_best

  Session& session_;
  Heartbeat& console_;
  const Health& health_;
  const RunState& state_;
  std::string checkpoint_;
  std::optional<EvaluationRecord> evaluation_;
  std::int64_t evaluated_step_ = -1;
  bool best_ = false;  // that evaluation
  std::int64_t saved_step_ = -1, saved_bytes_ = 0;
  double seconds_ = 0;
  bool failed_ = false, warned_ = false, config_written_ = false;
};

}  // namespace octavo::train
