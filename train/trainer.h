// Trains a model from a config, as `octavo train` does. Checkpoints, metrics and the report go to the
// config's output_dir. Ctrl-C and SIGTERM save a checkpoint and end the run; a run that is started again ends
// with the same bits as one that was never stopped.
//
//   auto config = octavo_train::load("run.yaml");
//   auto outcome = octavo_train::train(*config, console);
//   if (!outcome.ok()) show(outcome.status().message());
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/distributed/rank_failure.h"
#include "train/run/outcome.h"

#include <memory>
#include <optional>

namespace octavo_train {

class ProcessGroup;

// Errors: bad data or settings, divergence (ten steps in a row without finite gradients), exhausted memory.
// The message names the checkpoint to resume from. Handles SIGINT, SIGTERM and SIGHUP while it runs.
// REQUIRES: one run per process at a time.
//
// If the environment makes this process one of several ranks (train/distributed/rank_info.h), it joins the
// others, and they train together; only rank 0 writes and prints. `process_group`: a process group that
// exists already. `failure`: set to a failure that all ranks know, so that one rank prints it; see
// rank_failure.h.
Result<Outcome> train(const Config& config, Console& console,
                      std::shared_ptr<ProcessGroup> process_group = nullptr,
                      std::optional<RankFailure>* failure = nullptr);

}  // namespace octavo_train
