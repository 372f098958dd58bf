// Prints a run's messages on a terminal.
// SPDX-License-Identifier: MIT
#pragma once

#include "cli/progress.h"
#include "train/console/console.h"

#include <chrono>
#include <string>

namespace octavo::cli {

// Rewrites the progress line on a terminal; elsewhere prints a progress line at most every 5 seconds.
class TerminalConsole : public octavo_train::Console {
 public:
  void progress(const std::string& line) override {
    if (progress_.due(std::chrono::seconds(0), std::chrono::seconds(5))) progress_.say(line);
  }
  void note(const std::string& line) override { progress_.note(line); }
  [[nodiscard]] bool replaces_lines() const override { return progress_.on_terminal(); }

 private:
  Progress progress_;
};

}  // namespace octavo::cli
