// Prints on stderr what a long command is doing.
// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace octavo::cli {

// Rewrites one line on a terminal; prints separate lines elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void say(std::string_view what);
  // Returns whether this much time has passed since the last say(), on a terminal or elsewhere.
  [[nodiscard]] bool due(std::chrono::seconds on_terminal, std::chrono::seconds elsewhere) const;
  // Prints a line that is not overwritten.
  void note(std::string_view what);
  [[nodiscard]] bool on_terminal() const { return terminal_; }

 private:
  void clear();
  bool terminal_;
  std::optional<std::chrono::steady_clock::time_point> printed_at_;
};

}  // namespace octavo::cli
