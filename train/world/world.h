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

#include "train/world/place.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace octavo::train {

// What ends a run of several ranks; its text names the rank and its reason.
class WorldError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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
  // Of the monitor: between two signs of life; a rank without one is gone after; and for this rank's thread
  // to come back once a failure is known.
  std::chrono::milliseconds beat{1'000}, silence{10'000}, patience{20'000};
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
  static Result<std::unique_ptr<World>> join(const Place& place, const torch::Device& device,
                                             const WorldOptions& options);
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
  // Told to all others before this process ends with an error: their calls then throw this reason.
  void fail(const std::string& reason);

 private:
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octavo::train
