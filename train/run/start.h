// How a run starts: from a config to everything that its first step needs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/console/heartbeat.h"
#include "train/distributed/process_group.h"
#include "train/run/run.h"
#include "train/task.h"

#include <memory>

namespace octavo_train {

// A dry run reads no checkpoint, takes no lock and has no log: nothing of it touches the run's folder.
enum class Purpose { run, dry_run };

// Starts a run on all ranks together. An error is the same on all ranks; exceptions are errors, too, which
// are reported to the other ranks. `world`: null: this process alone. `task`: what is trained; null: the task
// that the config names.
Result<std::unique_ptr<Run>> start_run(const Config& config, Heartbeat& console,
                                       Purpose purpose = Purpose::run,
                                       std::shared_ptr<ProcessGroup> world = nullptr,
                                       std::unique_ptr<Task> task = nullptr);

}  // namespace octavo_train
