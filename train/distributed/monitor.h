// Watches the ranks of a world from a thread of its own, over the store: a rank that has failed, is gone or
// hangs is known to all others within seconds, with its reason.
//
// Every rank shows once a second that it is alive, how many calls it has come to, and what it is doing. Rank
// 0 reads all of them, the others read rank 0's: the store has a handful of requests a second and rank. The
// first failure that anybody sees is everybody's: it is written once and never replaced.
//
// If a failure is known and the world's thread does not notice it (it waits for a GPU, for instance), the
// monitor prints the failure and ends the process. It does not end a process that does local work, such as
// writing a checkpoint, until the limit of that work.
//
// Every request to the store has a time limit (TimedStore): a store whose host has lost power never answers.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/rank_failure.h"
#include "train/distributed/store.h"
#include "train/distributed/timed_thread.h"

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
  std::chrono::milliseconds patience;  // for the world's thread to notice a failure
  std::chrono::milliseconds local;     // for local work, besides the time that its bytes take
};

// The launcher reads here which ranks do local work. The value changes with every sign of life; empty: the
// rank does none.
std::string local_work_key(int rank);

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
  // Between these two calls the rank needs no other rank, does not count as hanging and is not ended by its
  // monitor. The limit is `local`, and a second for each megabyte of `bytes`. Calls may be nested; the limit
  // is that of the first.
  void begin_local_work(const std::string& what, std::uint64_t bytes);
  void end_local_work();
  // What a message about a failure ends with.
  void remember(const std::string& note);
  // The world's thread has come to another call.
  void called() { ++calls_; }

  // Reports a failure to the other ranks, within the limit of a request: they may not get it.
  void fail(const RankFailure& failure);
  // Waits until `done` or a failure. Throws WorldError with the failure.
  void await(const std::function<bool()>& done);
  // To be called when `done` has changed.
  void wake();
  // A call failed with `what`: throws WorldError with the reason, once it is known.
  [[noreturn]] void blame(const std::string& what);
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
  void declare(const RankFailure& failure);
  void learn(const RankFailure& failure);
  void end_if_stuck();
  [[nodiscard]] std::string key(const std::string& name) const { return plan_.prefix + name; }
  [[nodiscard]] bool works_locally() const;  // within the limit. REQUIRES: the mutex is held

  const Place place_;
  const MonitorPlan plan_;
  TimedStore watching_, telling_;
  std::atomic<std::int64_t> calls_{0};
  std::int64_t beats_ = 0, local_beats_ = 0;
  bool shown_ = false;  // the launcher reads that this rank does local work

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string doing_ = "starting", note_;
  std::optional<RankFailure> failure_;
  std::chrono::steady_clock::time_point since_, failed_at_;
  int local_depth_ = 0;
  std::string before_local_;  // what the rank was doing
  std::chrono::steady_clock::time_point local_until_, local_end_;
  bool heard_ = false, stop_ = false, left_ = false;

  std::map<int, Seen> seen_;  // the thread's own
  std::thread thread_;
};

}  // namespace octavo::train
