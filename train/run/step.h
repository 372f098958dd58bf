// One optimizer step: forward and backward passes of its micro-batches, the update, and measurements. The
// host does not wait for the device: the metrics of a step are read while the next step runs
// (step_metrics.h).
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

namespace octavo_train {

class Stepper {
 public:
  // The memory of this step of the process is measured, because states and workspaces are allocated by then.
  // If the step has no samples, the next step is measured.
  static constexpr std::int64_t kMeasuredStep = 2;

  explicit Stepper(Run& run);

  // Runs the step after counters.step and counts it. Returns false if the step had no samples: no update was
  // made, and finished() has no metrics of it. In a process group nothing is done or counted if signal() is
  // not 0.
  bool step();
  // The stop signal that any rank of a process group had received before the step; 0: none.
  [[nodiscard]] int signal() const { return signal_; }
  // Returns the metrics of the oldest step that were not returned yet; waits for them with `drain`.
  std::optional<StepMetric> finished(bool drain);

  // Number of steps that this process has done.
  [[nodiscard]] std::int64_t done() const { return done_; }
  [[nodiscard]] bool has_just_measured() const { return done_ == measured_; }
  // Memory at the peak of the measured step, and the seconds of that step; none until a step was measured.
  [[nodiscard]] const std::optional<MemoryByOwner>& memory() const { return owners_; }
  [[nodiscard]] double measured_seconds() const { return measured_seconds_; }
  // Returns BatchTotals::largest of that step.
  [[nodiscard]] double measured_length() const { return measured_length_; }
  // Seconds of micro-batches and updates of the finished steps.
  [[nodiscard]] double computing() const { return computing_; }
  // Returns true if the weights may not belong to counters.step: an error occurred in the update, or before
  // the step was counted.
  [[nodiscard]] bool updating() const { return updating_; }
  // After an error: restores the model's buffers if the step was not counted.
  void forget_step();

 private:
  // A micro-batch of a step.
  struct MicroBatch {
    std::int64_t step = 0, index = 0, count = 0;  // index and number of this rank's micro-batches
    std::int64_t number = 0;                      // its index among those of all ranks
    double divisor = 1;                           // rows of the step / rows of the micro-batch
  };
  bool measure();
  StepBatches take_batches();
  void count(std::int64_t number, const StepBatches& taken);
  void micro_batch(const MicroBatch& which, const Batch& batch, Stopwatch& watch, torch::Tensor& loss_sum);
  bool passes_and_update(std::int64_t number);
  void update(std::int64_t number);
  [[nodiscard]] torch::Tensor over_ranks(const torch::Tensor& loss) const;

  Run& run_;
  Heartbeat& console_;
  StepMetrics metrics_;
  BufferSnapshot buffers_;
  std::deque<std::vector<Stopwatch>> watches_;
  std::optional<MemoryByOwner> owners_;
  // The batches of the measured step live until the measurement ends: the CPU's meter does not see what the
  // loader's threads allocated, and torch would warn when such memory is freed.
  std::vector<Batch> held_;
  double measured_seconds_ = 0, computing_ = 0;
  double last_length_ = 0,
         measured_length_ = 0;             // BatchTotals::largest of the last step, and of the measured one
  std::int64_t done_ = 0, measured_ = -1;  // steps
  bool begun_ = false, updating_ = false;
  int signal_ = 0;
};

}  // namespace octavo_train
