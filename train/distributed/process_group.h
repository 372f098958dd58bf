// The ranks of a run and their collective operations. It uses c10d's process groups (NCCL on GPUs, gloo on
// CPUs), and its errors name the failed rank and the reason.
//
// A run has two channels. Tensors go through the device's group, in stream order, and the host does not wait
// for them. Values on which ranks must agree (rows of a step, a signal, a status) go through a group of the
// hosts, and the host waits: a few bytes, less than a millisecond. In a run without other ranks, calls return
// this rank's values.
//
// All ranks make the same calls in the same order, from one thread. A call throws ProcessGroupError if
// another rank has failed, is gone, or has not made the call within the timeout. After that the process group
// cannot be used.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/distributed/rank_failure.h"
#include "train/distributed/rank_info.h"

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {

// Queued work on tensors.
class Pending {
 public:
  struct State;
  Pending() = default;  // nothing is pending
  explicit Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Orders later work on the current stream after this work. On the CPU it returns when the work is done. May
  // be called again.
  void wait();

 private:
  std::shared_ptr<State> state_;
};

// Traffic through the device's group. `waited` is the part of `seconds` that was not hidden by other work.
struct Traffic {
  std::int64_t bytes = 0;  // sent by this rank, by the algorithm's count: 2 (n-1)/n of an all_reduce
  double seconds = 0, waited = 0;

  Traffic& operator+=(const Traffic& more) {
    bytes += more.bytes, seconds += more.seconds, waited += more.waited;
    return *this;
  }
};

struct ProcessGroupOptions {
  std::chrono::milliseconds timeout{600'000};  // limit for the other ranks to make a call
  std::chrono::milliseconds start{600'000};    // limit for all ranks to join
  // The monitor's times: `beat` between two heartbeats; `silence` without a heartbeat, after which a rank is
  // gone; `patience` for this rank's thread to notice a failure; `local` for local work, plus one second per
  // megabyte.
  std::chrono::milliseconds beat{1'000}, silence{10'000}, patience{20'000}, local{3'600'000};
  // Is called until all ranks have joined; returns true if this process should stop.
  std::function<bool()> stop = {};
};

class Watchdog;

// A scope in which this rank does work that needs no other rank and may take long, such as writing a
// checkpoint. The other ranks wait for it beyond rank_timeout, and neither its monitor nor Octavo's launcher
// ends it because another rank has failed. After ProcessGroupOptions::local plus one second per megabyte it
// counts as other work, so that endless work cannot block the run.
class LocalWork {
 public:
  LocalWork(std::shared_ptr<Watchdog> monitor, const std::string& what, std::uint64_t bytes);
  ~LocalWork();
  LocalWork(const LocalWork&) = delete;
  LocalWork& operator=(const LocalWork&) = delete;

 private:
  std::shared_ptr<Watchdog> monitor_;  // null if there is no group
};

class ProcessGroup {
 public:
  enum class Reduce { sum, max };

  // Returns a process group of one process: every call returns immediately.
  static std::unique_ptr<ProcessGroup> alone();
  // Returns rank 0 of a process group of `ranks` ranks without the other ranks: calls return immediately and
  // change nothing. It is for predictions, whose tensors hold no data that could be summed.
  static std::unique_ptr<ProcessGroup> pretend(int ranks);
  // Waits for all ranks. `device` is this rank's own device; all ranks must have the same device type.
  // `failure` is set if all ranks have the same error.
  static Result<std::unique_ptr<ProcessGroup>> join(const RankInfo& rank_info, const torch::Device& device,
                                                    const ProcessGroupOptions& options,
                                                    std::optional<RankFailure>* failure = nullptr);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] const RankInfo& rank_info() const;
  [[nodiscard]] int rank() const { return rank_info().rank; }
  [[nodiscard]] int ranks() const { return rank_info().ranks; }
  [[nodiscard]] bool leads() const { return rank_info().leads(); }
  [[nodiscard]] bool grouped() const { return rank_info().grouped(); }

  // Operations on tensors. Tensors must be contiguous, on the device, and of the same size on all ranks; the
  // next host operation checks the sizes. They stay alive until the work is done.
  Pending all_reduce(const torch::Tensor& tensor, Reduce how = Reduce::sum);
  // `part` is this rank's 1/ranks of `whole`. It may be a view of `whole`; then the rest of `whole` is
  // undefined afterwards.
  Pending reduce_scatter(const torch::Tensor& part, const torch::Tensor& whole);
  Pending all_gather(const torch::Tensor& whole, const torch::Tensor& part);
  // Sums on rank `root`. On the other ranks the tensor is undefined afterwards.
  Pending reduce(const torch::Tensor& tensor, int root);
  Pending broadcast(const torch::Tensor& tensor, int root);
  // Returns the traffic since the last call. Waits for the work so far, on a GPU too, so it is for steps that
  // are logged.
  Traffic take_traffic();

  // Operations on host values. Sums are in the order of ranks, so they are bitwise equal on all ranks.
  void sum(std::span<double> values);
  void max(std::span<std::int64_t> values);
  // Returns all ranks' texts, by rank.
  std::vector<std::string> gather(const std::string& mine);
  // Returns rank 0's text.
  std::string broadcast_text(const std::string& text);
  // Returns the first error by rank, as "rank N: message", the same on all ranks. Without a group it returns
  // `mine`.
  Status first_error(const Status& mine);

  // Sets what this rank is doing, for the message about a rank that hangs. Any thread may call it; it only
  // copies the text.
  void set_activity(const std::string& what);
  // Sets the end of messages about failures: "; the newest checkpoint is ...".
  void set_error_suffix(const std::string& note);
  // Begins local work. `what` has the meaning of set_activity()'s; `bytes` is what the work reads or writes.
  [[nodiscard]] LocalWork local_work(const std::string& what, std::uint64_t bytes = 0) const;
  // Reports this rank's error to all others before the process ends: their calls then throw it. An error that
  // all ranks have from one call, such as first_error(), is reported as such.
  void fail(const std::string& reason);
  // Reports a failure that a call of this rank has returned.
  void fail(const RankFailure& failure);
  // Records an error that every rank has from one call.
  void note_common_failure(RankFailure failure);
  // Returns the failure that ends the run, if it is known.
  [[nodiscard]] std::optional<RankFailure> failure() const;

 private:
  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octavo_train
