// Trains a model from a config: the whole of `octavo train`. Checkpoints, metrics and the report go to the
// config's output_dir. Ctrl-C and SIGTERM save a checkpoint and end the run; a run that is started again ends
// with the same bits as one that was never stopped.
//
//   auto config = octavo::train::load("run.yaml");
//   auto outcome = octavo::train::train(*config, console);
//   if (!outcome.ok()) show(outcome.status().message());
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/console/console.h"
#include "train/distributed/rank_failure.h"
#include "train/run/outcome.h"

#include <octavo/status.h>

#include <memory>
#include <optional>

namespace octavo::train {

class World;

// Errors: bad data or settings, divergence (ten steps in a row without finite gradients), exhausted memory.
// The message names the checkpoint to go on from. Handles SIGINT, SIGTERM and SIGHUP while it runs. REQUIRES:
// one run per process at a time.
//
// Where the environment gives this process a place among others (train/distributed/rank_info.h), it joins
// them, and all train together: only rank 0 writes and prints. `world`: ranks that have found each other
// already. `failure`: set to the failure that the other ranks know, so that one of them prints it; see
// rank_failure.h.
Result<Outcome> train(const Config& config, Console& console, std::shared_ptr<World> world = nullptr,
                      std::optional<RankFailure>* failure = nullptr);

}  // namespace octavo::train
