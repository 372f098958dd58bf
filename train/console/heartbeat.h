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

namespace octavo::train {

// One thread may use it. The beats come from another thread, one call at a time.
class Heartbeat : public Console {
 public:
  // A second of silence where lines replace each other, else five.
  explicit Heartbeat(Console& console);
  // The first beat comes after `silence`. Where lines replace each other the next come as soon again;
  // elsewhere each waits twice as long as the one before, up to a minute, so that a log stays short.
  Heartbeat(Console& console, std::chrono::milliseconds silence);
  ~Heartbeat() override;

  void progress(const std::string& line) override;
  void note(const std::string& line) override;
  [[nodiscard]] bool replaces_lines() const override { return console_.replaces_lines(); }

  // What is being done from now on; an empty text: nothing that takes long.
  void doing(std::string what);
  // Who is told of it too, at once; nobody at first.
  void tell(std::function<void(const std::string&)> listener) { listener_ = std::move(listener); }

 private:
  using Clock = std::chrono::steady_clock;
  void beat();
  void said();

  Console& console_;
  const std::chrono::milliseconds silence_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string what_;
  std::function<void(const std::string&)> listener_;  // of the caller's thread alone
  Clock::time_point since_, next_;
  std::chrono::milliseconds wait_;
  bool end_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace octavo::train
