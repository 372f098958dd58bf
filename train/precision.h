// Mixed precision: the autocast scope of a forward pass, dynamic loss scaling for float16, and gradients that
// add up in fp32 whatever the weights are.
// SPDX-License-Identifier: MIT
#pragma once

#include "optimizer.h"
#include "train/config/settings.h"

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <vector>

namespace octavo::train {

// Autocast to `dtype` on a device, for a scope; nothing for float32.
class AutocastScope {
 public:
  AutocastScope(const torch::Device& device, ComputeType dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  torch::DeviceType device_;
  bool active_, before_;
  torch::ScalarType dtype_before_;
};

// Doubles every 2,000 good steps, halves at a bad one, as torch's GradScaler; it lives on the device, so no
// step waits for it. Without float16 it does nothing.
class LossScaler {
 public:
  LossScaler(const torch::Device& device, ComputeType compute_dtype);

  [[nodiscard]] bool active() const { return scale_.defined(); }
  [[nodiscard]] torch::Tensor scaled(const torch::Tensor& loss) const;
  // Undefined where it is not active.
  [[nodiscard]] const torch::Tensor& scale() const { return scale_; }
  void update(const torch::Tensor& skipped);

  void save(nlohmann::ordered_json& numbers) const;
  // A copy made before keeps what it had.
  void load(const nlohmann::ordered_json& numbers);

 private:
  torch::Tensor scale_, good_steps_;
};

// Gradients of several backward passes. fp32 weights add up in their own gradients; those of bf16 weights
// are moved into fp32 sums after each pass, where there is more than one.
class GradientSums {
 public:
  GradientSums(NamedTensors parameters, std::int64_t passes);

  // After each backward pass; the last one leaves the sums as the parameters' gradients.
  void pass_done();
  // Before the first pass of a step: no parameter has a gradient.
  void clear();
  // After clear(), where a step has fewer passes than usual.
  void expect(std::int64_t passes) { expected_ = passes; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }          // of gradients and sums, at most
  [[nodiscard]] std::int64_t sum_bytes() const { return sum_bytes_; }  // of the sums, which are always there

 private:
  NamedTensors parameters_;
  std::int64_t passes_, expected_ = passes_, done_ = 0, bytes_ = 0, sum_bytes_ = 0;
  std::vector<torch::Tensor> sums_;  // undefined where torch's own will do
  std::vector<bool> filled_;         // in this step
};

}  // namespace octavo::train
