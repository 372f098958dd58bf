// Ctrl-C and SIGTERM as a wish to stop that the loop looks at, instead of the end of the process. A second
// Ctrl-C ends it at once.
// SPDX-License-Identifier: MIT
#pragma once

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
  struct sigaction interrupt_before_ {};
  struct sigaction terminate_before_ {};
};

}  // namespace octavo::train
