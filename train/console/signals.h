// While a StopSignals lives, Ctrl-C, SIGTERM and SIGHUP (a closed terminal) do not end the process: they set
// a flag that the loop looks at. A second Ctrl-C does not end it either, so that a checkpoint that is being
// written is finished; it asks to leave out what comes after the checkpoint. A third one ends the process at
// once.
//
// Writing to a pipe that nobody reads (Ctrl-C ends `| tee` too), or beyond a limit on file sizes, is an error
// of that write instead of a signal.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <csignal>

namespace octavo::train {

// What a user calls it: "Ctrl-C".
const char* signal_name(int signal);

inline constexpr const char* kStopping =
    "\nstopping after this step, with a checkpoint; two more Ctrl-C end the process at once\n";

inline constexpr const char* kStoppingDryRun =
    "\nstopping after this step; a dry run writes nothing; two more Ctrl-C end the process at once\n";

// One at a time.
class StopSignals {
 public:
  // `said` is a literal, which the handler of Ctrl-C shows at once: a step can take a minute, and a user who
  // sees nothing presses Ctrl-C again.
  explicit StopSignals(const char* said = kStopping);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that asked to stop; 0: none.
  [[nodiscard]] static int received();
  // Whether Ctrl-C came a second time.
  [[nodiscard]] static bool received_again();

 private:
  static constexpr int kSignals = 5;
  std::array<struct sigaction, kSignals> before_{};
};

}  // namespace octavo::train
