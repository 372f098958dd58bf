// Sums the gradients of a step over micro-batches and ranks, and gives the sums to the tensors that the
// optimizer steps.
//
// A step: clear(), expect(), then backward() and micro_batch_done() for each micro-batch, then finish().
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/nn/named_tensors.h"
#include "train/optim/optimizer.h"

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace octavo_train {

class Gradients {
 public:
  Gradients() = default;
  virtual ~Gradients() = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Removes the gradients of all tensors. Call it before the first micro-batch of a step.
  virtual void clear() = 0;
  // Sets the number of this rank's micro-batches in the step (`micro_batches`, may be 0) and the largest
  // number of any rank (`most`). Call it after clear().
  virtual void expect(std::int64_t /*micro_batches*/, std::int64_t /*most*/) {}
  // Call it after the backward pass of each micro-batch.
  virtual void micro_batch_done() = 0;
  // Sets the sums as the gradients of the tensors that the optimizer steps. A tensor that got no gradient in
  // any micro-batch of any rank has none. Call it after the last micro-batch, on every rank.
  virtual void finish() = 0;

  // Returns the peak bytes of gradients and sums.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  // Returns the bytes that are always allocated: sums and communication buffers.
  [[nodiscard]] virtual std::int64_t sum_bytes() const = 0;
  // Returns the bytes of buffers that serve only communication. They are not part of bytes().
  [[nodiscard]] virtual std::int64_t communication_bytes() const { return 0; }
};

// The gradients of one process without a process group. Gradients of fp32 weights accumulate in place.
// Gradients of bf16 weights are added to fp32 sums after each micro-batch, if a step has several.
class GradientSums final : public Gradients {
 public:
  GradientSums(NamedTensors parameters, std::int64_t micro_batches);

  void clear() override;
  void micro_batch_done() override;
  void finish() override;
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }
  [[nodiscard]] std::int64_t sum_bytes() const override { return sum_bytes_; }

 private:
  NamedTensors parameters_;
  std::int64_t bytes_ = 0, sum_bytes_ = 0;
  std::vector<torch::Tensor> sums_;  // undefined if torch's own gradient suffices
  std::vector<bool> filled_;         // in this step
};

// The gradients of one process whose optimizer offloads most of them to host memory while backward() runs. A
// gradient that comes in parts (train/nn/recompute.h) stays on the device until its micro-batch ends. If
// torch accumulates micro-batches in it, as in GradientSums, it stays until the step. The sums are
// bit-identical to those of GradientSums.
class OffloadedGradients final : public Gradients {
 public:
  // REQUIRES: an optimizer of these parameters, which outlives this object.
  OffloadedGradients(NamedTensors parameters, std::int64_t micro_batches, StepOptimizer& optimizer);

  void clear() override;
  void micro_batch_done() override;
  void finish() override { rest_.finish(); }
  // Counts the gradients that stay on the device.
  [[nodiscard]] std::int64_t bytes() const override { return rest_.bytes(); }
  [[nodiscard]] std::int64_t sum_bytes() const override { return rest_.sum_bytes(); }

 private:
  StepOptimizer& optimizer_;
  NamedTensors parameters_;
  std::vector<std::size_t> offloaded_;  // numbers of parameters whose gradients are offloaded
  std::int64_t micro_batches_;
  GradientSums rest_;
};

// Creates the object that a run's settings and ranks need. Without a process group it handles this process
// alone. `micro_batches`: the largest number of micro-batches of a rank in a step. `weights`: the rank's
// pieces (ZeRO); null: every rank steps all parameters. `optimizer`: offloads gradients if the settings
// request it; null: gradients stay on the device. ProcessGroup and optimizer outlive the result.
std::unique_ptr<Gradients> make_gradients(ProcessGroup& process_group, const ParameterGroups& groups,
                                          const TrainingSettings& training, std::int64_t micro_batches,
                                          const ShardedWeights* weights, StepOptimizer* optimizer = nullptr);

}  // namespace octavo_train
