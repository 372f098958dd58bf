// The interface through which a run prints what it is doing.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo_train {

class Console {
 public:
  Console() = default;
  virtual ~Console() = default;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Prints a status line, which the next one replaces. It may be dropped if lines cannot be replaced. Its
  // parts are separated by two blanks; parts that do not fit into the terminal's width are dropped from the
  // end.
  virtual void progress(const std::string& line) = 0;
  // Prints a line that stays.
  virtual void note(const std::string& line) = 0;
  // Returns true if each status line replaces the one before, as on a terminal.
  [[nodiscard]] virtual bool replaces_lines() const { return false; }
};

}  // namespace octavo_train
