// The numbers of finished steps. They are copied to the host behind the step and read when the copy is done,
// so that the host does not wait for the device at each step.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

namespace octavo::train {

struct StepNumbers {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;   // as it was before clipping, without the loss scale
  double loss_scale = 0;  // 0: none
  bool skipped = false;
};

class Readout {
 public:
  // At most `depth` steps are queued; then pop() waits for the oldest. So a signal is noticed soon.
  explicit Readout(const torch::Device& device, std::size_t depth = 2);
  ~Readout();
  Readout(const Readout&) = delete;
  Readout& operator=(const Readout&) = delete;

  // 0-d tensors of the step's device; `scale` undefined: none.
  void push(std::int64_t step, const torch::Tensor& loss, const torch::Tensor& norm,
            const torch::Tensor& skipped, const torch::Tensor& scale);

  // The oldest step's numbers, if more than `depth` steps are queued. With `drain`: if any is.
  std::optional<StepNumbers> pop(bool drain);

 private:
  struct Pending;
  torch::Device device_;
  std::size_t depth_;
  std::deque<Pending> pending_;
};

}  // namespace octavo::train
