// Where a process stands among those of its run: alone, or a rank of several that the own launcher, torchrun,
// DeepSpeed's launcher or Slurm has started. It comes from the environment alone.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstdint>
#include <functional>
#include <string>

namespace octavo::train {

struct Place {
  enum class Launcher { none, own, torchrun, slurm };  // torchrun: or one with its variables, as DeepSpeed's
  Launcher launcher = Launcher::none;
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on this machine
  std::string address;                  // where the store of rank 0, or of the launcher, listens
  int port = 0;
  bool store_is_there = false;  // the launcher serves it; else rank 0 does
  int restart = 0;              // how often the launcher has started the run again
  bool one_gpu_each = false;    // the launcher shows each rank its own GPU alone: all have number 0

  // Whether the run has a group, which may be of one rank.
  [[nodiscard]] bool grouped() const { return launcher != Launcher::none; }
  // All ranks are on this machine.
  [[nodiscard]] bool one_machine() const { return ranks == local_ranks; }
  [[nodiscard]] bool leads() const { return rank == 0; }
};

// A variable of the environment; null: it is not set.
using Environment = std::function<const char*(const char* name)>;

// An error names the variable and what is wrong with it.
Result<Place> find_place(const Environment& environment);

}  // namespace octavo::train
