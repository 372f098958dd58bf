// The ranks of a run, and what they do together: c10d's groups, NCCL on GPUs and gloo on CPUs, with errors
// that say which rank failed and why.
//
// A run has two channels. Tensors go through the device's group, in stream order, and the host does not wait
// for them. What ranks must agree on (rows of a step, a signal, a status) goes through a group of the hosts,
// and the host waits: a few bytes, less than a millisecond. A world without a group answers for its one rank.
//
// All ranks make the same calls in the same order, from one thread. A call throws WorldError where another
// rank has failed, is gone, or has not come within the timeout; the world is of no use then.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/rank_failure.h"
#include "train/distributed/rank_info.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

// Work on tensors that was queued.
class Pending {
 public:
  struct State;
  Pending();  // nothing is pending
  explicit Pending(std::shared_ptr<State> state);
  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;

  // What is queued on the current stream from now on comes after the work; on the CPU it is done on return.
  // May be called again.
  void wait();

 private:
  std::shared_ptr<State> state_;
};

// What went through the device's group. `waited` is the part of `seconds` that nothing else hid.
struct Traffic {
  std::int64_t bytes = 0;  // that this rank has sent, by the algorithm's count: 2 (n-1)/n of an all_reduce
  double seconds = 0, waited = 0;

  Traffic& operator+=(const Traffic& more) {
    bytes += more.bytes, seconds += more.seconds, waited += more.waited;
    return *this;
  }
};

struct WorldOptions {
  std::chrono::milliseconds timeout{600'000};  // for the others to come to a call
  std::chrono::milliseconds start{600'000};    // for all of them to be there
  // The monitor's times: `beat` between two signs of life; `silence` without one, after which a rank is gone;
  // `patience` for this rank's thread to notice a failure; `local` for local work, besides a second for each
  // megabyte.
  std::chrono::milliseconds beat{1'000}, silence{10'000}, patience{20'000}, local{3'600'000};
  // While the ranks have not met: returns true where this process is to stop.
  std::function<bool()> stop = {};
};

class Monitor;

// While it lives, this rank does work that needs no other rank and may take long, such as writing a
// checkpoint. The other ranks wait for it beyond rank_timeout, and neither its monitor nor our launcher ends
// it because another rank has failed. After WorldOptions::local and a second for each megabyte of the work,
// it counts as any other work, so that endless work cannot block the run.
class LocalWork {
 public:
  LocalWork(std::shared_ptr<Monitor> monitor, const std::string& what, std::uint64_t bytes);
  ~LocalWork();
  LocalWork(const LocalWork&) = delete;
  LocalWork& operator=(const LocalWork&) = delete;

 private:
  std::shared_ptr<Monitor> monitor_;  // null: there is no group
};

class World {
 public:
  enum class Reduce { sum, max };

  // One process without a group: every call answers at once.
  static std::unique_ptr<World> alone();
  // Rank 0 of so many, where no other is: calls end at once and change nothing. For plans, whose tensors hold
  // nothing that could be summed.
  static std::unique_ptr<World> imagined(int ranks);
  // Waits for all ranks. The device is this rank's own; ranks that do not all have its type are an error.
  // `failure` is set where the error is known to all ranks.
  static Result<std::unique_ptr<World>> join(const Place& place, const torch::Device& device,
                                             const WorldOptions& options,
                                             std::optional<RankFailure>* failure = nullptr);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] const Place& place() const;
  [[nodiscard]] int rank() const { return place().rank; }
  [[nodiscard]] int ranks() const { return place().ranks; }
  [[nodiscard]] bool leads() const { return place().leads(); }
  [[nodiscard]] bool grouped() const { return place().grouped(); }

  // Tensors: contiguous, on the device, of one size on all ranks: the next call of hosts checks that. They
  // stay alive until the work is done.
  Pending all_reduce(const torch::Tensor& tensor, Reduce how = Reduce::sum);
  // `part` is this rank's 1/ranks of `whole`; it may be the view of it, and then the rest is undefined
  // afterwards.
  Pending reduce_scatter(const torch::Tensor& part, const torch::Tensor& whole);
  Pending all_gather(const torch::Tensor& whole, const torch::Tensor& part);
  // The sum on rank `root`; elsewhere the tensor is undefined afterwards.
  Pending reduce(const torch::Tensor& tensor, int root);
  Pending broadcast(const torch::Tensor& tensor, int root);
  // Since it was asked last. Waits for the work so far, on a GPU too: for steps that are logged.
  Traffic take_traffic();

  // Hosts. Sums in the order of ranks: the same bits everywhere.
  void sum(std::span<double> values);
  void max(std::span<std::int64_t> values);
  // Everybody's text, by rank.
  std::vector<std::string> gather(const std::string& mine);
  // Rank 0's text.
  std::string share(const std::string& text);
  // The first error by rank, as "rank N: message"; on all ranks the same. Without a group: `mine`.
  Status agree(const Status& mine);

  // What this rank is doing, for the message about a rank that hangs. Any thread; it costs no more than a
  // copy.
  void doing(const std::string& what);
  // What a message about a failure ends with: "; the newest checkpoint is ...".
  void remember(const std::string& note);
  // Begins local work; `what` as in doing(), `bytes` that it reads or writes.
  [[nodiscard]] LocalWork local_work(const std::string& what, std::uint64_t bytes = 0) const;
  // Reports this rank's error to all others before the process ends: their calls then throw it. An error that
  // all ranks have from one call, such as agree(), is reported as such.
  void fail(const std::string& reason);
  // Reports a failure that this rank has got from a call.
  void fail(const RankFailure& failure);
  // Notes an error that every rank has from one call.
  void note_common_failure(RankFailure failure);
  // The failure that ends the run, where it is known.
  [[nodiscard]] std::optional<RankFailure> failure() const;

 private:
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octavo::train
