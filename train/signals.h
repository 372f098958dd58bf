// Ctrl-C, SIGTERM and SIGHUP (a closed terminal) as a wish to stop that the loop looks at, instead of the end
// of the process. A second Ctrl-C ends it at once. What would end it before a checkpoint is saved, a pipe
// that nobody reads (Ctrl-C ends `| tee` too) or a limit on a file's size, becomes an error of that write.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <csignal>

namespace octavo::train {

// While it lives. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that asked to stop; 0: none.
  [[nodiscard]] static int received();

 private:
  static constexpr int kSignals = 5;
  std::array<struct sigaction, kSignals> before_{};
};

}  // namespace octavo::train
