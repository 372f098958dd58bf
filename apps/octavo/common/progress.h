// Prints on stderr what a long command is doing.
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace octavo::cli {

// One line rewritten on a terminal, a line each elsewhere.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void say(std::string_view what);
  // A line that stays.
  void note(std::string_view what);

 private:
  void clear();
  bool terminal_;
};

}  // namespace octavo::cli
