// The owner of a run's checkpoints: it saves them, decides which of them are kept, and writes the config.yaml
// next to them. All ranks of a run call it together; rank 0 writes and decides.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/folder/evaluation_file.h"
#include "train/checkpoint/folder/folder_lock.h"
#include "train/config/settings.h"
#include "train/console/console.h"
#include "train/distributed/process_group.h"
#include "train/log/run_log.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

// The parts of a run that its checkpoints need. All of them outlive the Checkpointer.
struct CheckpointSources {
  const Settings& settings;         // checkpoints go to output_dir
  const std::string& yaml;          // the text of config.yaml
  const std::string& resumed_from;  // the path of a checkpoint; empty: the run begins
  std::int64_t last_step = 0;       // of the run
  ProcessGroup& process_group;
  Heartbeat& console;
  FolderLock& lock;                                       // of output_dir
  RunLog* log;                                            // null: nothing is logged
  const RunState& counters;                               // as they are now
  std::function<SavedState()> state;                      // TrainingState::save()
  const nlohmann::ordered_json& data;                     // identifies the data
  const std::map<std::string, std::string>& extra_files;  // see TaskModel::extra_files
};

class Checkpointer {
 public:
  explicit Checkpointer(CheckpointSources sources);

  // The reason for saving: the step is due, only its metric asks for it, or the run has failed.
  enum class Reason { due, best, rescue };
  // Saves the current step, unless it is saved already, removes the checkpoints that are not kept, and writes
  // a record to the log. While rank 0 writes, the watchdog of the other ranks waits for it. An error if the
  // run's folder was removed or replaced.
  Status save(Reason reason);
  // Adds the metrics of the current step's evaluation to its checkpoint. Returns an error if they lack the
  // metric of save_best.
  Status add_evaluation(const std::vector<Metric>& metrics);
  // Returns true if that evaluation makes the current step one of the best, by save_best. It is false while
  // steps are skipped: the weights are in doubt.
  [[nodiscard]] bool is_best() const { return evaluated_step_ == from_.counters.step && best_; }
  [[nodiscard]] std::string best_text() const;  // ", the best loss so far"
  // Tries to save the current step although the run has failed. It writes nothing to the log, which may be
  // the reason for the failure, and needs no other rank. Returns where the step is saved, as the end of a
  // message, or an empty text.
  std::string rescue();
  // Returns the end of the message of a run that has failed and could not be saved: the last checkpoint whose
  // step is trusted (DivergenceGuard::is_trusted).
  [[nodiscard]] std::string last_good_checkpoint_text(
      const std::function<bool(std::int64_t step)>& is_trusted) const;
  // Called with the first metrics or the first checkpoint, so that a run that fails immediately has changed
  // nothing. A config.yaml with other settings is kept under another name.
  Status write_config();

  [[nodiscard]] const std::string& newest() const { return newest_; }  // its path
  [[nodiscard]] double seconds() const { return seconds_; }            // spent on saving
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  void set_newest(const std::string& checkpoint);
  [[nodiscard]] bool among_best() const;
  void remove_superseded();
  [[nodiscard]] const Metric* best_metric() const;  // null: not evaluated at this step, or no save_best
  [[nodiscard]] const TrainingSettings& training() const { return from_.settings.training; }
  [[nodiscard]] const std::string& folder() const { return from_.settings.output_dir; }

  const CheckpointSources from_;
  std::string newest_;
  std::optional<EvaluationRecord> evaluation_;
  std::int64_t evaluated_step_ = -1;
  bool best_ = false;  // that evaluation
  std::int64_t saved_step_ = -1;
  double seconds_ = 0;
  bool failed_ = false, warned_ = false, config_written_ = false;
};

}  // namespace octavo_train
