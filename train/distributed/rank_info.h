// Determines a process's rank in its run from the environment alone: the process is alone, or one of several
// ranks that Octavo's own launcher, torchrun, DeepSpeed's launcher or Slurm has started.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstdint>
#include <functional>
#include <string>

namespace octavo_train {

struct RankInfo {
  // torchrun: torchrun itself, or a launcher that sets the same variables, such as DeepSpeed's.
  enum class Launcher { none, own, torchrun, slurm };
  Launcher launcher = Launcher::none;
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on this machine
  std::string address;                  // listening address of the store of rank 0 or of the launcher
  int port = 0;
  bool store_is_there = false;  // the launcher serves the store; else rank 0 does
  int restart = 0;              // how often the launcher has restarted the run
  bool one_gpu_each = false;    // each rank sees only its own GPU, with index 0

  // Returns true if the run has a process group, which may have only one rank.
  [[nodiscard]] bool grouped() const { return launcher != Launcher::none; }
  // Returns true if all ranks are on this machine.
  [[nodiscard]] bool one_machine() const { return ranks == local_ranks; }
  [[nodiscard]] bool leads() const { return rank == 0; }
};

// Returns an environment variable; null if it is not set.
using Environment = std::function<const char*(const char* name)>;

// Returns the process's rank and its peers. An error names the variable and the problem.
Result<RankInfo> rank_from_environment(const Environment& environment);

}  // namespace octavo_train
