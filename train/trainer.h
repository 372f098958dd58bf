// Trains a model from a config: the whole of `octavo train`. Checkpoints, metrics and the report go to the
// config's output_dir. Ctrl-C and SIGTERM save a checkpoint and end the run; a run that is started again ends
// with the same bits as one that was never stopped.
//
//   auto config = octavo::train::load("run.yaml");
//   auto outcome = octavo::train::train(*config, console);
//   if (!outcome.ok()) show(outcome.status().message());
// SPDX-License-Identifier: MIT
#pragma once

#include "console.h"
#include "train/config/config.h"
#include "train/files/metric.h"
#include "train/world/rank_failure.h"

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace octavo::train {

class World;

struct Outcome {
  std::int64_t step = 0;
  int signal = 0;                // the signal that ended the run early; 0: the run is finished
  bool started = true;           // false: the signal came before all ranks were there
  std::optional<Metric> metric;  // the first one of the last evaluation
  std::string checkpoint;        // the newest one
  std::string not_saved;         // why it is not of the last step; empty: it is
  std::string report;            // the page's path
};

// Errors: bad data or settings, divergence (ten steps in a row without finite gradients), exhausted memory.
// The message names the checkpoint to go on from. Handles SIGINT, SIGTERM and SIGHUP while it runs. REQUIRES:
// one run per process at a time.
//
// Where the environment gives this process a place among others (train/world/place.h), it joins them, and all
// train together: only rank 0 writes and prints. `world`: ranks that have found each other already.
// `failure`: set to the failure that the other ranks know, so that one of them prints it; see rank_failure.h.
Result<Outcome> train(const Config& config, Console& console, std::shared_ptr<World> world = nullptr,
                      std::optional<RankFailure>* failure = nullptr);

}  // namespace octavo::train
