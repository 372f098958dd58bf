// A run in one process: what start_run() makes from a config, and what a TrainingLoop or a dry run works on.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/folder_lock.h"
#include "train/console/console.h"
#include "train/data/prefetch.h"
#include "train/distributed/process_group.h"
#include "train/log/run_log.h"
#include "train/run/run_config.h"
#include "train/run/training_state.h"
#include "train/task.h"

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

namespace octavo_train {

// What a run has besides its model and data. It lives as long as the run.
struct Services {
  std::shared_ptr<ProcessGroup> process_group;  // not null
  torch::Device device;
  Heartbeat& console;           // outlives the run
  FolderLock lock;              // taken by rank 0, and not by a dry run
  std::unique_ptr<RunLog> log;  // null: a dry run, or another rank than 0

  // Writes a line of the log, if there is one.
  Status record(const nlohmann::ordered_json& line) const {
    return log != nullptr ? log->write(line) : Status();
  }
};

// Counts of the micro-batches that were computed.
struct BatchTotals {
  std::int64_t passes = 0, rows = 0;
  double length = 0, padded_length = 0;  // see Batch
  double largest = 0;                    // padded_length of the largest micro-batch of this process

  BatchTotals& operator+=(const BatchTotals& more) {
    passes += more.passes, rows += more.rows;
    length += more.length, padded_length += more.padded_length;
    largest = std::max(largest, more.largest);
    return *this;
  }
};

// Returns the source of this rank's batches in the stage of the next step. The task outlives the result.
Prefetch<Batch>::Source batch_source(const RunConfig& config, const ProcessGroup& process_group,
                                     const OpenTask& task, const RunState& counters);

struct Run {
  Run(RunConfig config, Services services, OpenTask task, std::unique_ptr<TrainingState> state,
      Prefetch<Batch> batches);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  [[nodiscard]] Prefetch<Batch>::Source batch_source() const {
    return octavo_train::batch_source(config, *services.process_group, task_, state.counters);
  }

 private:
  // The threads of the batches read from the task, so they end first; then the state ends, which the model's
  // task built.
  OpenTask task_;
  std::unique_ptr<TrainingState> state_;
  std::unique_ptr<Prefetch<Batch>> batches_;

 public:
  const RunConfig config;
  Services services;
  Task& task;
  const TaskData& data;
  TrainingState& state;
  Prefetch<Batch>& batches;
  BatchTotals computed;          // in this process
  double data_wait_seconds = 0;  // until this process had read its batches
};

}  // namespace octavo_train
