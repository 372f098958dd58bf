// Watches the ranks of a process group in a separate thread, over the store. If a rank has failed, is gone or
// hangs, all other ranks learn that and the reason within seconds.
//
// Every rank writes a heartbeat once a second: how many calls it has made, and what it is doing. Rank 0 reads
// all heartbeats and the others read rank 0's, so the store serves a few requests per second and rank. The
// first failure that any rank finds is the failure of all ranks: it is written once and never replaced.
//
// If there is a failure and the main thread does not notice it (because it waits for a GPU, for instance),
// the monitor prints the failure and ends the process. It does not end a process that does local work, such
// as writing a checkpoint, before the time limit of that work.
//
// Every request to the store has a time limit (TimedStore), because a store whose host has lost power never
// answers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/rank_failure.h"
#include "train/distributed/store.h"

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

namespace octavo_train {

struct WatchdogOptions {
  std::string prefix;                  // prefix of this process group's keys
  std::chrono::milliseconds timeout;   // limit for a rank for which the others wait
  std::chrono::milliseconds beat;      // time between two heartbeats
  std::chrono::milliseconds silence;   // time without a heartbeat, after which a rank is gone
  std::chrono::milliseconds patience;  // limit for the main thread to notice a failure
  std::chrono::milliseconds local;     // limit of local work, plus the time for its bytes
};

// Returns the key from which the launcher reads that a rank does local work. Its value changes with every
// heartbeat; empty: the rank does none.
std::string local_work_key(int rank);

class Watchdog {
 public:
  // Uses two connections: one for the thread, one for calls. Writes this rank's first heartbeat.
  Watchdog(const RankInfo& rank_info, WatchdogOptions options, StorePointer watching, StorePointer telling);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Begins to watch the other ranks. REQUIRES: all of them have joined.
  void watch();
  // Leaves the process group: the other ranks no longer expect heartbeats. The process that serves the store
  // waits for the others.
  void leave();

  void set_activity(const std::string& what);
  // Begin and end local work. In between, the rank needs no other rank, does not count as hanging and is not
  // ended by its monitor. The time limit is `local` plus one second per megabyte of `bytes`. Calls may be
  // nested; the limit of the outermost call applies.
  void begin_local_work(const std::string& what, std::uint64_t bytes);
  void end_local_work();
  // Sets a text that is appended to messages about failures.
  void set_error_suffix(const std::string& note);
  // Counts a call of the main thread.
  void called() { ++calls_; }

  // Reports a failure to the other ranks, within the time limit of a request. The report may not reach them.
  void fail(const RankFailure& failure);
  // Waits until `done` or a failure. Throws ProcessGroupError with the failure.
  void await(const std::function<bool()>& done);
  // Wakes await(). Call it after `done` has changed.
  void wake();
  // Reports that a call failed with `what`: waits for the reason and throws ProcessGroupError with it.
  [[noreturn]] void throw_failure(const std::string& what);
  [[nodiscard]] bool failed() const;
  [[nodiscard]] std::optional<RankFailure> failure() const;

 private:
  struct Seen;
  void run();
  void beat();
  void look();
  void watch_rank(int rank, const std::string& text);
  void find_hang();
  void show_local_work();
  void publish_failure(const RankFailure& failure);
  void record_failure(const RankFailure& failure);
  void end_if_stuck();
  [[nodiscard]] std::string key(const std::string& name) const { return options_.prefix + name; }
  [[nodiscard]] bool works_locally() const;  // within its time limit. REQUIRES: mutex_ is held

  const RankInfo rank_info_;
  const WatchdogOptions options_;
  TimedStore watching_, telling_;
  std::atomic<std::int64_t> calls_{0};
  std::int64_t beats_ = 0, local_beats_ = 0;
  bool shown_ = false;  // the launcher was notified of local work

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string doing_ = "starting", note_;
  std::optional<RankFailure> failure_;
  std::chrono::steady_clock::time_point since_, failed_at_;
  int local_depth_ = 0;
  std::string before_local_;  // doing_ before the local work
  std::chrono::steady_clock::time_point local_until_, local_end_;
  bool heard_ = false, stop_ = false, left_ = false;

  std::map<int, Seen> seen_;  // used only by the thread
  std::thread thread_;
};

}  // namespace octavo_train
