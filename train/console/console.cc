// SPDX-License-Identifier: MIT
#include "train/console/console.h"

#include "train/base/numbers.h"

#include <algorithm>

namespace octavo_train {
namespace {

constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(1);

}  // namespace

Heartbeat::Heartbeat(Console& console)
    : Heartbeat(console, std::chrono::seconds(console.replaces_lines() ? 1 : 5)) {}

Heartbeat::Heartbeat(Console& console, std::chrono::milliseconds silence)
    : console_(console), silence_(silence), wait_(silence), thread_([this] { beat(); }) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Heartbeat::progress(const std::string& line) {
  const std::lock_guard lock(mutex_);
  said();
  console_.progress(line);
}

void Heartbeat::note(const std::string& line) {
  const std::lock_guard lock(mutex_);
  said();
  console_.note(line);
}

void Heartbeat::doing(std::string what) {
  if (listener_) listener_(what);
  const std::lock_guard lock(mutex_);
  const bool idle = what_.empty();
  what_ = std::move(what);
  since_ = Clock::now();
  if (idle) said(), wake_.notify_one();
}

// Restarts the silence period. REQUIRES: mutex_ is held.
void Heartbeat::said() {
  next_ = Clock::now() + silence_;
  wait_ = silence_;
}

void Heartbeat::beat() {
  std::unique_lock lock(mutex_);
  while (!end_) {
    if (what_.empty()) {
      wake_.wait(lock);
      continue;
    }
    if (Clock::now() < next_) {
      wake_.wait_until(lock, next_);
      continue;
    }
    const std::chrono::duration<double> seconds = Clock::now() - since_;
    console_.progress(what_ + ": " + duration_text(seconds.count()) + " so far");
    if (!console_.replaces_lines()) wait_ = std::min(2 * wait_, kLongestWait);
    next_ = Clock::now() + wait_;
  }
}

}  // namespace octavo_train
