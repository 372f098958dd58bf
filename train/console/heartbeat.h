// A console that is never silent for long: while nothing else is printed, it repeats what the run is doing
// and how many seconds that has taken. A first step may take a minute, and a silent terminal looks dead.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace octavo_train {

// One thread may use it. Heartbeat lines are printed by another thread, one call at a time.
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
