// Starts a run: joins the ranks, opens the data, builds the model, and loads the checkpoint if the run
// resumes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/data/prefetch.h"
#include "train/distributed/process_group.h"
#include "train/run/run.h"
#include "train/run/trainer.h"
#include "train/run/training_state.h"
#include "train/task.h"

#include <memory>
#include <optional>

namespace octavo_train {

// Waits for all ranks and returns their process group, or a group of one for a single process. Returns null
// if a signal (StopSignals) came before all ranks had joined. `failure` is set if all ranks know the error.
Result<std::shared_ptr<ProcessGroup>> join_ranks(const Config& config, const RankInfo& rank_info,
                                                 std::optional<RankFailure>* failure = nullptr);

// A run is four objects. Each is complete, and refers only to those before it.
class Run {
 public:
  Run(RunConfig config, Services services, std::unique_ptr<TrainingState> state, Prefetch<Batch> batches);
  // Ends them in reverse order: the trainer's loader threads read from the task, which the state owns.
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const RunConfig config;
  Services services;
  std::unique_ptr<TrainingState> state;  // not null
  std::unique_ptr<Trainer> trainer;      // not null
};

// A dry run reads no checkpoint, takes no lock and has no log: nothing of it touches the run's folder.
enum class Purpose { run, dry_run };

// Starts a run on all ranks together. An error is the same on all ranks; exceptions are errors, too, which
// are reported to the other ranks. `process_group`: null: this process alone. `task`: what is trained; null:
// the task that the config names.
Result<std::unique_ptr<Run>> start_run(const Config& config, Heartbeat& console,
                                       Purpose purpose = Purpose::run,
                                       std::shared_ptr<ProcessGroup> process_group = nullptr,
                                       std::unique_ptr<Task> task = nullptr);

}  // namespace octavo_train
