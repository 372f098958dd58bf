// Metrics of finished steps: loss, norm of the gradients, skipped or not. They are copied to the host after
// the step and read when the copy is done, so that the host does not wait for the device at each step.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

namespace octavo_train {

struct StepMetric {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;   // as it was before clipping, without the loss scale
  double loss_scale = 0;  // 0: none
  bool skipped = false;
};

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

}  // namespace octavo_train
