// A console for one of several ranks. Rank 0 prints everything; the other ranks print only warnings, with
// their rank.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"

#include <string>

namespace octavo_train {

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
      console_.note("rank " + std::to_string(rank_) + ": " + line);
  }
  [[nodiscard]] bool replaces_lines() const override { return console_.replaces_lines(); }

 private:
  Console& console_;
  const int rank_;
};

}  // namespace octavo_train
