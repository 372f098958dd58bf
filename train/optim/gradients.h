// The gradients of a step: those of several backward passes added up, and of several ranks. What the
// optimizer steps has them afterwards.
//
// A step: clear(), expect(), then backward() and pass_done() for each pass, then finish().
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/named_tensors.h"
#include "train/optim/optimizer.h"

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace octavo::train {

class Gradients {
 public:
  Gradients() = default;
  virtual ~Gradients() = default;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  // Before the first pass of a step: no tensor has a gradient.
  virtual void clear() = 0;
  // After clear(): the passes that this rank will do, and the most that a rank does. A rank may have none.
  virtual void expect(std::int64_t passes, std::int64_t most) = 0;
  // After each backward pass.
  virtual void pass_done() = 0;
  // After the last pass, on every rank: the tensors that the optimizer steps have the sums as gradients, and
  // those that no pass of any rank had a gradient for have none.
  virtual void finish() = 0;

  // Bytes of gradients and sums at most.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  // Of what is always there: sums, and what ranks communicate.
  [[nodiscard]] virtual std::int64_t sum_bytes() const = 0;
  // Of what is there for communication alone; it is no part of bytes().
  [[nodiscard]] virtual std::int64_t communication_bytes() const { return 0; }
};

// Those of one process without a group. fp32 weights add up in their own gradients; those of bf16 weights are
// moved into fp32 sums after each pass, where there is more than one.
class GradientSums final : public Gradients {
 public:
  GradientSums(NamedTensors parameters, std::int64_t passes);

  void clear() override;
  void expect(std::int64_t /*passes*/, std::int64_t /*most*/) override {}
  void pass_done() override;
  void finish() override;
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }
  [[nodiscard]] std::int64_t sum_bytes() const override { return sum_bytes_; }

 private:
  NamedTensors parameters_;
  std::int64_t bytes_ = 0, sum_bytes_ = 0;
  std::vector<torch::Tensor> sums_;  // undefined where torch's own will do
  std::vector<bool> filled_;         // in this step
};

// Those of one process, of which the optimizer takes most to host memory while backward() runs. A gradient
// that comes in parts (recompute.h) stays until its pass ends; where torch adds up passes in it, as in
// GradientSums, until the step. The sums are those of GradientSums in bits.
class TakenGradients final : public Gradients {
 public:
  // The optimizer, of these parameters, outlives this.
  TakenGradients(NamedTensors parameters, std::int64_t passes, StepOptimizer& optimizer);

  void clear() override;
  void expect(std::int64_t /*passes*/, std::int64_t /*most*/) override {}
  void pass_done() override;
  void finish() override { rest_.finish(); }
  // Of those that stay on the device.
  [[nodiscard]] std::int64_t bytes() const override { return rest_.bytes(); }
  [[nodiscard]] std::int64_t sum_bytes() const override { return rest_.sum_bytes(); }

 private:
  StepOptimizer& optimizer_;
  NamedTensors parameters_;
  std::vector<std::size_t> taken_;  // numbers of parameters
  std::int64_t passes_;
  GradientSums rest_;
};

}  // namespace octavo::train
