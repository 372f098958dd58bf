// Starts the ranks of a run on this machine: processes of one program, each told its place as torchrun would.
//
// The store in which they meet lives here, on the loopback interface. Each rank has a process group of its
// own and dies with the launcher. Ctrl-C, SIGTERM and SIGHUP go to rank 0 alone, which stops all of them
// after the same step. Where a rank fails, the others learn why and end; those that do not are killed, but
// none is while a rank shows that it does local work (LocalWork), such as writing a checkpoint.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <chrono>
#include <string>
#include <vector>

namespace octavo::train {

struct LaunchPlan {
  int ranks = 1;
  std::vector<std::string> command;  // the program and its arguments
  // After a failure and the last local work: SIGTERM for the ranks that are left, then SIGKILL.
  std::chrono::milliseconds ask_after{20'000}, kill_after{45'000};
  std::chrono::milliseconds silence{10'000};  // without a new sign of it, a rank's local work is over
};

struct Launched {
  int code = 0;         // the first failure's: its exit code, or 128 + the signal that ended it
  std::string message;  // what no rank could say itself; empty: rank 0 has said it
};

// Waits until all have ended. REQUIRES: the process has no threads that handle signals, and is not a rank.
Result<Launched> launch(const LaunchPlan& plan);

// The key of the store under which the launcher reports that a rank is gone, as a RankFailure.
inline constexpr const char* kLauncherKey = "octavo/launcher";

}  // namespace octavo::train
