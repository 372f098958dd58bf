// One optimizer step: its batches, forward and backward passes of its micro-batches, the update, and
// measurements. The host does not wait for the device: the metrics of a step are read while the next step
// runs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"
#include "train/device/device.h"
#include "train/run/buffer_snapshot.h"
#include "train/run/run.h"

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace octavo_train {

// Metrics of a finished step.
struct StepMetric {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;   // as it was before clipping, without the loss scale
  double loss_scale = 0;  // 0: none
  bool skipped = false;
};

// The metrics of finished steps: they are copied to the host after a step and read when the copy is done.
class StepMetrics {
 public:
  // At most `depth` steps are queued; then pop() waits for the oldest, so that a signal is noticed soon.
  explicit StepMetrics(const torch::Device& device, std::size_t depth = 2);
  ~StepMetrics();
  StepMetrics(const StepMetrics&) = delete;
  StepMetrics& operator=(const StepMetrics&) = delete;

  // Queues the metrics of a step: 0-d tensors on its device; `scale` may be undefined.
  void push(std::int64_t step, const torch::Tensor& loss, const torch::Tensor& norm,
            const torch::Tensor& skipped, const torch::Tensor& scale);

  // Returns the oldest step's metrics if more than `depth` steps are queued, or any step with `drain`.
  std::optional<StepMetric> pop(bool drain);

 private:
  struct Pending;
  torch::Device device_;
  std::size_t depth_;
  std::deque<Pending> pending_;
};

// The batches of a step: this rank's micro-batches, and the totals of all ranks.
//
// A step takes the next micro-batches x ranks batches in a row; batch a * ranks + r is micro-batch a of rank
// r. Before the first micro-batch the ranks exchange their counts, because the loss of a micro-batch is
// weighted by its share of the step. Random numbers depend on a batch's number among the batches of all
// ranks, so the same batches have the same numbers on any number of ranks.
struct StepBatches {
  std::vector<Batch> batches;         // this rank's batches that have rows
  std::vector<std::int64_t> numbers;  // the number of each among the step's batches with rows, from 0
  double waited = 0;                  // seconds until they were read
  // Totals of all ranks:
  BatchTotals fed;
  std::int64_t most_passes = 0;  // the most micro-batches of a rank
  std::int64_t units = 0, left_out = 0, passes_left_out = 0;
  bool new_choices = false;  // rank 0 has FP8 choices that the other ranks lack
  int signal = 0;            // stop signal received by any rank; always 0 without a process group
};

// Reads this rank's batches of the next step; in a process group, waits until the other ranks have read
// theirs. The state does not change.
StepBatches read_step_batches(Run& run);

// Returns the stop signal that any rank received; 0: none. All ranks call it.
int signal_on_any(ProcessGroup& process_group);

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
