// The interface through which a run prints what it is doing, a console for one of several ranks, and a
// console that is never silent for long.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

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

// While nothing else is printed, it repeats what the run is doing and how many seconds that has taken: a
// first step may take a minute, and a silent terminal looks dead. One thread may use it. Heartbeat lines are
// printed by another thread, one call at a time.
class Heartbeat : public Console {
 public:
  // Uses one second of silence if the console replaces lines, else five.
  explicit Heartbeat(Console& console);
  // Prints the first heartbeat after `silence`. If the console replaces lines, later ones come at the same
  // interval. Otherwise each interval is twice the one before, up to a minute, so that a log stays short.
  Heartbeat(Console& console, std::chrono::milliseconds silence);
  ~Heartbeat() override;

  void progress(const std::string& line) override;
  void note(const std::string& line) override;
  [[nodiscard]] bool replaces_lines() const override { return console_.replaces_lines(); }

  // Sets the current activity. An empty text means that nothing slow is running.
  void doing(std::string what);
  // Sets a listener that doing() calls immediately with each new activity; none by default.
  void on_activity(std::function<void(const std::string&)> listener) { listener_ = std::move(listener); }

 private:
  using Clock = std::chrono::steady_clock;
  void beat();
  void said();

  Console& console_;
  const std::chrono::milliseconds silence_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string what_;
  std::function<void(const std::string&)> listener_;  // used only by the caller's thread
  Clock::time_point since_, next_;
  std::chrono::milliseconds wait_;
  bool end_ = false;
  std::thread thread_;  // last member: the thread uses all members above
};

}  // namespace octavo_train
