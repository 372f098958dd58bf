// One optimizer step: passes forward and backward, the update, and what was measured of it. The host does not
// wait for the device: the numbers of a step are read while the next one runs (step_metrics.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/heartbeat.h"
#include "train/device/device.h"
#include "train/run/buffer_snapshot.h"
#include "train/run/run.h"
#include "train/run/step_batches.h"
#include "train/run/step_metrics.h"

#include <deque>
#include <optional>
#include <vector>

namespace octavo::train {

class Stepper {
 public:
  // The memory of this step of a process is measured: by then states and workspaces are there. If it has
  // nothing to train on, the next one is.
  static constexpr std::int64_t kMeasuredStep = 2;

  explicit Stepper(Run& run);

  // Does the step after state.step and counts it in the state. False: there was nothing to train on, and no
  // update was made; no numbers will come of it. With a group nothing is done or counted where signal() says
  // so.
  bool step();
  // With a group: the signal that asked any rank to stop, as all ranks learned before they began the step
  // together; 0: none.
  [[nodiscard]] int signal() const { return signal_; }
  // The oldest step that is done and was not asked for yet; with `drain` waits for it.
  std::optional<StepNumbers> finished(bool drain);

  // Steps that this process has done.
  [[nodiscard]] std::int64_t done() const { return done_; }
  [[nodiscard]] bool has_just_measured() const { return done_ == measured_; }
  // Memory at the peak of a step, and the seconds of that step. None before kMeasuredStep, or the first step
  // after it that trained.
  [[nodiscard]] const std::optional<MemoryByOwner>& memory() const { return owners_; }
  [[nodiscard]] double measured_seconds() const { return measured_seconds_; }
  // Returns BatchTotals::largest of that step.
  [[nodiscard]] double measured_length() const { return measured_length_; }
  // Seconds of passes and updates of the finished steps.
  [[nodiscard]] double computing() const { return computing_; }
  // Whether the weights are not those of the step that the state has: an error came out of the update, or
  // before the step was counted.
  [[nodiscard]] bool updating() const { return updating_; }
  // After an error: what the passes of a step that is not counted did to the model's buffers is undone.
  void forget_step();

 private:
  // Which pass of which step, and how much of it.
  struct Pass {
    std::int64_t step = 0, index = 0, count = 0;  // of this rank's passes; the first index is 0
    std::int64_t number = 0;                      // among those of all ranks, from 0
    double divisor = 1;                           // the step's rows / the pass's
  };
  bool measure();
  StepShare take_batches();
  void count(std::int64_t number, const StepShare& taken);
  void pass(const Pass& which, const Batch& batch, Stopwatch& watch, torch::Tensor& loss_sum);
  bool passes_and_update(std::int64_t number);
  void update(std::int64_t number);
  [[nodiscard]] torch::Tensor over_ranks(const torch::Tensor& loss) const;

  Run& run_;
  Heartbeat& console_;
  Readout readout_;
  BufferKeeper buffers_;
  std::deque<std::vector<Stopwatch>> watches_;
  std::optional<MemoryByOwner> owners_;
  // The batches of the measured step live on until it is measured: the meter of the CPU does not know what
  // the workers allocated, and torch would warn about its end.
  std::vector<Batch> held_;
  double measured_seconds_ = 0, computing_ = 0;
  double last_length_ = 0,
         measured_length_ = 0;             // BatchTotals::largest of the last step, and of the measured one
  std::int64_t done_ = 0, measured_ = -1;  // steps
  bool begun_ = false, updating_ = false;
  int signal_ = 0;
};

}  // namespace octavo::train
