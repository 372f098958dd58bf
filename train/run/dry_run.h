// A dry run: a few steps, the largest batches first, and one evaluation. It writes nothing and reads no
// checkpoint, and returns the memory and the time that the run will need.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/console/console.h"
#include "train/device/memory.h"
#include "train/distributed/rank_failure.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

struct DryRun {
  int signal = 0;                  // the signal that stopped it; 0: it was completed
  std::vector<std::string> lines;  // the summary
  // Measured in the step with the largest batches.
  MemoryByOwner owners = {};
  std::int64_t reserved = 0;  // by torch's allocator; 0 on the CPU
  double step_seconds = 0;
  std::int64_t parameters = 0, trained = 0;
  std::string device = {};  // in words
};

// Errors are those of a run: bad data or settings, weights of init_from that do not fit, exhausted memory.
// Handles signals as train() does. REQUIRES: steps >= 2, because the memory of the second step is measured;
// one run per process at a time. `evaluates`: false omits the evaluation. `failure`: as for train().
Result<DryRun> dry_run(const Config& config, std::int64_t steps, Console& console, bool evaluates = true,
                       std::optional<RankFailure>* failure = nullptr);

}  // namespace octavo_train
