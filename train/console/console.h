// The interface through which a run prints what it is doing, and a console for one of several ranks.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

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

class RankConsole : public Console {
 public:
  RankConsole(Console& console, int rank) : console_(console), rank_(rank) {}  // `console` must outlive it

  void progress(const std::string& line) override {
    if (rank_ == 0) console_.progress(line);
  }
  void note(const std::string& line) override {
    if (rank_ == 0)
      console_.note(line);
    else if (line.starts_with("warning: "))
      console_.note(fmt::format("rank {}: {}", rank_, line));
  }
  [[nodiscard]] bool replaces_lines() const override { return console_.replaces_lines(); }

 private:
  Console& console_;
  const int rank_;
};

}  // namespace octavo_train
