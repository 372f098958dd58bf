// Prints on stderr what a long command is doing.
// SPDX-License-Identifier: MIT
#pragma once

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
  // Prints a line that is not overwritten.
  void note(std::string_view what);

 private:
  void clear();
  bool terminal_;
};

}  // namespace octavo::cli
