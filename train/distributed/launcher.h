// Starts the ranks of a run on this machine: processes of one program, each with its rank in the environment,
// as torchrun sets it.
//
// The store of the ranks lives in this process, on the loopback interface. Each rank has its own process
// group and dies with the launcher. Ctrl-C, SIGTERM and SIGHUP go only to rank 0, which stops all ranks after
// the same step. If a rank fails, the others learn why and end, and the launcher kills those that do not. It
// kills none while a rank shows that it does local work (LocalWork), such as writing a checkpoint.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <chrono>
#include <string>
#include <vector>

namespace octavo_train {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;  // the program and its arguments
  // Times after a failure and after the last local work: SIGTERM for the remaining ranks, then SIGKILL.
  std::chrono::milliseconds ask_after{20'000}, kill_after{45'000};
  std::chrono::milliseconds silence{10'000};  // without a new heartbeat, after which local work is over
};

struct Launched {
  int code = 0;         // of the first failure: its exit code, or 128 + the signal that ended it
  std::string message;  // the text that no rank could print; empty: rank 0 has printed it
};

// Starts the ranks and waits until all have ended. REQUIRES: the process has no threads that handle signals,
// and is not a rank.
Result<Launched> launch(const LaunchOptions& options);

// The key of the store under which the launcher reports that a rank is gone, as a RankFailure.
inline constexpr const char* kLauncherKey = "octavo/launcher";

}  // namespace octavo_train
