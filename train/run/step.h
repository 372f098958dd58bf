// One optimizer step: its batches, forward and backward passes of its micro-batches, the update, and
// measurements. The host does not wait for the device: the metrics of a step are read while the next step
// runs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/console/console.h"
#include "train/data/prefetch.h"
#include "train/device/device.h"
#include "train/device/memory.h"
#include "train/distributed/process_group.h"
#include "train/nn/named_tensors.h"
#include "train/run/run.h"
#include "train/run/training_state.h"
#include "train/task.h"

#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
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

// Forward passes change a model's buffers, such as the statistics of BatchNorm. If the optimizer skips a step
// because gradients are not finite, a snapshot restores the buffers, so nothing of a bad batch stays.
//
// The forward passes of each rank change its own buffers. After a step all ranks have the mean of the
// changes, or of integers, such as counts, the largest value: all ranks have the same model. A buffer that no
// rank changes keeps its bits. Tensor versions cannot show a change, because BatchNorm writes its statistics
// without one.
class BufferSnapshot {
 public:
  // The snapshot refers to the model's own tensors.
  explicit BufferSnapshot(const NamedTensors& buffers);

  // Copies the values. Called before the first micro-batch of a step.
  void save();
  // Averages the changes since save(). Called after the last micro-batch, on all ranks. It does nothing in a
  // single process. REQUIRES: save().
  void average_across_ranks(ProcessGroup& process_group);
  // Restores the saved values if `skipped`, one number on the buffers' device, is not 0. The host does not
  // wait.
  void restore_if(const torch::Tensor& skipped);
  // Restores the saved values. REQUIRES: save().
  void restore();

 private:
  struct Kind {  // buffers of one dtype and device, which are copied together
    std::vector<torch::Tensor> buffers;
    torch::Tensor kept;  // all of them, flat
  };
  static void give(Kind& kind, const torch::Tensor& values);

  std::vector<Kind> kinds_;
};

// Counts of the micro-batches that were computed.
struct BatchTotals {
  std::int64_t micro_batches = 0, rows = 0;
  double length = 0, padded_length = 0;  // see Batch
  double largest = 0;                    // padded_length of the largest micro-batch of this process

  BatchTotals& operator+=(const BatchTotals& more) {
    micro_batches += more.micro_batches, rows += more.rows;
    length += more.length, padded_length += more.padded_length;
    largest = std::max(largest, more.largest);
    return *this;
  }
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
  BatchTotals totals;
  std::int64_t most_micro_batches = 0;  // the most micro-batches of a rank
  std::int64_t units = 0;
  std::int64_t skipped_samples = 0, empty_micro_batches = 0;
  bool new_choices = false;  // rank 0 has FP8 choices that the other ranks lack
  int signal = 0;            // stop signal received by any rank; always 0 without a process group
};

// Returns the source of this rank's batches from the step after state.counters.step on, in the stage of that
// step. The state's task outlives the result.
Prefetch<Batch>::Source batch_source(const RunConfig& config, const ProcessGroup& process_group,
                                     const TrainingState& state);

// Returns the stop signal that any rank received; 0: none. All ranks call it.
int signal_on_any(ProcessGroup& process_group);

class Stepper {
 public:
  // The memory of this step of the process is measured, because states and workspaces are allocated by then.
  // If the step has no samples, the next step is measured.
  static constexpr std::int64_t kMeasuredStep = 2;

  // All arguments outlive it. `batches`: those of batch_source().
  Stepper(const RunConfig& config, const Services& services, TrainingState& state, Prefetch<Batch> batches);

  // Makes the next batches those of the stage of the next step.
  void begin_stage();
  // Makes the next batches those of `source`, from its position 0 on.
  void replace_batches(Prefetch<Batch>::Source source) { batches_.reset(std::move(source), 0); }

  // Runs the step after counters.step and counts it. Returns false if the step had no samples: no update was
  // made, and finished() has no metrics of it. In a process group nothing is done or counted if signal() is
  // not 0.
  bool step();
  // The stop signal that any rank of a process group had received before the step; 0: none.
  [[nodiscard]] int signal() const { return signal_; }
  // Returns the metrics of the oldest step that were not returned yet; waits for them with `drain`.
  std::optional<StepMetric> finished(bool drain);

  // Totals of the micro-batches that this process has computed, and the seconds until it had read them.
  [[nodiscard]] const BatchTotals& totals() const { return totals_; }
  [[nodiscard]] double data_wait_seconds() const { return data_wait_seconds_; }
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
  // Reads this rank's batches of the next step; in a process group, waits until the other ranks have read
  // theirs. The state does not change.
  StepBatches read_batches();
  bool measure();
  void count(std::int64_t number, const StepBatches& batches);
  void micro_batch(const MicroBatch& which, const Batch& batch, Stopwatch& watch, torch::Tensor& loss_sum);
  bool run_step(std::int64_t number);
  void update(std::int64_t number);
  [[nodiscard]] torch::Tensor over_ranks(const torch::Tensor& loss) const;

  const RunConfig& config_;
  ProcessGroup& process_group_;
  const torch::Device device_;
  Heartbeat& console_;
  TrainingState& state_;
  Prefetch<Batch> batches_;
  const bool task_waits_for_weights_;   // see TaskModel::set_gate
  std::size_t fp8_choices_shared_ = 0;  // choices of rank 0 that all ranks have
  BatchTotals totals_;
  double data_wait_seconds_ = 0;
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
