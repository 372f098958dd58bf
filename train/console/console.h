// Where a run says what it is doing.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::train {

class Console {
 public:
  Console() = default;
  virtual ~Console() = default;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // A state, which the next one replaces. It may be dropped where lines cannot be replaced. Its parts are
  // separated by two blanks; those that a terminal has no columns for are dropped from the end.
  virtual void progress(const std::string& line) = 0;
  // A line that stays.
  virtual void note(const std::string& line) = 0;
  // Whether each line of progress takes the place of the one before, as on a terminal.
  [[nodiscard]] virtual bool replaces_lines() const { return false; }
};

}  // namespace octavo::train
