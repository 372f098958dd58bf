// While a StopSignals lives, Ctrl-C, SIGTERM and SIGHUP (a closed terminal) do not end the process: they set
// a flag that the loop reads. A second Ctrl-C does not end it either, so that a checkpoint in progress is
// completed; it requests to skip the work after the checkpoint. A third one ends the process immediately.
//
// Writing to a closed pipe (Ctrl-C ends `| tee` too), or beyond a limit on file sizes, is an error of that
// write instead of a signal.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <csignal>

namespace octavo_train {

// Returns the signal's name for users: "Ctrl-C".
const char* signal_name(int signal);

inline constexpr const char* kStopping =
    "\nstopping after this step, with a checkpoint; two more Ctrl-C end the process at once\n";

inline constexpr const char* kStoppingDryRun =
    "\nstopping after this step; a dry run writes nothing; two more Ctrl-C end the process at once\n";

// At most one may exist at a time.
class StopSignals {
 public:
  // `said` must be a string literal. The handler of Ctrl-C prints it immediately: a step can take a minute,
  // and a user who sees nothing presses Ctrl-C again.
  explicit StopSignals(const char* said = kStopping);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns the signal that requested the stop; 0 if there was none.
  [[nodiscard]] static int received();
  // Returns true if Ctrl-C came a second time.
  [[nodiscard]] static bool received_again();

 private:
  static constexpr int kSignals = 5;
  std::array<struct sigaction, kSignals> before_{};
};

}  // namespace octavo_train
