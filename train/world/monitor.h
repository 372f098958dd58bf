// Watches the ranks of a world from a thread of its own, over the store: a rank that has failed, is gone or
// hangs is known to all others within seconds, with its reason.
//
// Every rank shows once a second that it is alive, how many calls it has come to, and what it is doing. Rank
// 0 reads all of them, the others read rank 0's: the store has a handful of requests a second and rank. The
// first failure that anybody sees is everybody's: it is written once and never replaced.
//
// Where a failure is known and the thread of the world does not come back to hear of it (it waits for a GPU,
// say), the monitor says it and ends the process.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/world/store.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace octavo::train {

struct MonitorPlan {
  std::string prefix;                  // of the keys of this world
  std::chrono::milliseconds timeout;   // for a rank that the others wait for
  std::chrono::milliseconds beat;      // between two signs of life
  std::chrono::milliseconds silence;   // without one, a rank is gone
  std::chrono::milliseconds patience;  // for the world's thread to hear of a failure
};

class Monitor {
 public:
  // Two connections: one for the thread, one for calls. Says that this rank is there.
  Monitor(const Place& place, MonitorPlan plan, StorePointer watching, StorePointer telling);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // From here on the others are watched. REQUIRES: all of them are there.
  void watch();
  // The rank leaves: it is not missed from now on. The process that serves the store waits for the others.
  void leave();

  void doing(const std::string& what);
  // What a message about a failure ends with.
  void remember(const std::string& note);
  // The world's thread has come to another call.
  void called() { ++calls_; }

  // This rank's own end, told to the others.
  void fail(const std::string& reason);
  // Waits until `done` or a failure. Throws WorldError with the failure.
  void await(const std::function<bool()>& done);
  // To be called when `done` has changed.
  void wake();
  // A call failed with `what`: throws WorldError with the reason, once it is known.
  [[noreturn]] void blame(const std::string& what);
  [[nodiscard]] bool failed() const;

 private:
  struct Seen;
  void run();
  void beat();
  void look();
  void watch_rank(int rank, const std::string& text);
  void find_hang();
  void declare(const std::string& reason);
  void learn(const std::string& reason);
  void end_if_stuck();
  [[nodiscard]] std::string key(const std::string& name) const { return plan_.prefix + name; }
  [[nodiscard]] std::string message() const;  // REQUIRES: the mutex is held, and there is a failure

  const Place place_;
  const MonitorPlan plan_;
  StorePointer watching_, telling_;
  std::atomic<std::int64_t> calls_{0};
  std::int64_t beats_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string doing_ = "starting", note_, failure_;
  std::chrono::steady_clock::time_point since_, failed_at_;
  bool heard_ = false, stop_ = false, left_ = false;

  std::map<int, Seen> seen_;  // the thread's own
  std::thread thread_;
};

}  // namespace octavo::train
