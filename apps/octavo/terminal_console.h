// Prints a run's messages on a terminal.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/common/progress.h"
#include "train/console/console.h"

#include <unistd.h>

#include <chrono>
#include <string>

namespace octavo::cli {

// Rewrites the progress line on a terminal; elsewhere prints a progress line at most every 5 seconds.
class TerminalConsole : public octavo_train::Console {
 public:
  void progress(const std::string& line) override {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ && said_ && now - last_ < std::chrono::seconds(5)) return;
    progress_.say(line);
    last_ = now;
    said_ = true;
  }
  void note(const std::string& line) override { progress_.note(line); }
  [[nodiscard]] bool replaces_lines() const override { return terminal_; }

 private:
  Progress progress_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool said_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace octavo::cli
