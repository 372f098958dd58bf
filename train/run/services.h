// The services of a run besides its model and data: the process group, the device, the console, the log, and
// the lock of its folder. They live as long as the run.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/folder/folder_lock.h"
#include "train/console/heartbeat.h"
#include "train/distributed/process_group.h"
#include "train/log/run_log.h"

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <memory>

namespace octavo_train {

struct Services {
  std::shared_ptr<ProcessGroup> world;  // not null
  torch::Device device;
  Heartbeat& console;           // outlives the run
  FolderLock lock;              // taken by rank 0, and not by a dry run
  std::unique_ptr<RunLog> log;  // null: a dry run, or another rank than 0

  // Writes a line of the log, if there is one.
  Status record(const nlohmann::ordered_json& line) const {
    return log != nullptr ? log->write(line) : Status();
  }
};

}  // namespace octavo_train
