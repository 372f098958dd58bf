// The interface of a run's optimizer. It is Octavo's own optimizer or, on devices that Octavo has no code
// for, plain LibTorch's with fp32 states. Both clip the gradient norm, and both skip the complete step if a
// gradient is not finite.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"
#include "train/optim/param_groups.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace octavo_train {

class ParallelLayout;
class ShardedWeights;

class StepOptimizer {
 public:
  StepOptimizer() = default;
  virtual ~StepOptimizer() = default;
  StepOptimizer(const StepOptimizer&) = delete;
  StepOptimizer& operator=(const StepOptimizer&) = delete;

  // Sets the learning rate of the schedule. Rates of groups with their own learning_rate change in
  // proportion.
  virtual void set_learning_rate(double rate) = 0;
  // Sets the loss scale, by which step() divides the gradients: one float on the parameters' device, or
  // undefined.
  virtual void set_loss_scale(torch::Tensor scale) = 0;
  virtual void step() = 0;

  // Return results of the last step as 0-d tensors on its device: the gradient norm (before clipping, still
  // multiplied by the loss scale), and a number that is not 0 if the step was skipped.
  [[nodiscard]] virtual torch::Tensor grad_norm() const = 0;
  [[nodiscard]] virtual torch::Tensor skipped() const = 0;

  // Makes all work queued from now on see updated weights: all weights, or those of a module. Offloaded
  // weights may be updated while the next forward pass runs, so call this before any use of a weight, except
  // in forward passes with a gate (TaskModel::set_gate).
  virtual void wait() {}
  virtual void wait(const torch::nn::Module& /*module*/) {}
  // takes() returns true if the gradient of a parameter (by number) is offloaded to host memory while
  // backward() runs, unless it comes in parts. take() offloads a gradient that is still on the device. drop()
  // discards the offloaded gradients.
  [[nodiscard]] virtual bool takes(std::size_t /*parameter*/) { return false; }
  virtual void take(std::size_t /*parameter*/) {}
  virtual void drop() {}

  struct Bytes {
    std::int64_t states = 0, master = 0, workspace = 0;
    // Bytes in host memory if states are offloaded. `host_copies`: copies of weights and gradients.
    std::int64_t host_states = 0, host_master = 0, host_copies = 0;
  };
  [[nodiscard]] virtual Bytes bytes() const = 0;  // on this rank

  // Save and load the state of every parameter: tensors named after the parameter, and a JSON object of
  // numbers. load() checks everything first: on an error, which names what differs, nothing has changed. It
  // copies the tensors that it keeps. The states are those of complete parameters, also if ranks have pieces.
  // With pieces, save() is collective: rank 0 gets the tensors, the other ranks get none. load() keeps this
  // rank's pieces.
  virtual void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const = 0;
  virtual Status load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) = 0;
};

// The optimizer that a run will use. It is chosen before anything is allocated.
struct OptimizerChoice {
  OptimizerName name;
  bool native = true;         // Octavo's own optimizer; else plain LibTorch's
  std::string warning;        // why `name` is not the requested optimizer; else empty
  bool bf16_weights = false;  // weights are bf16 (with the settings' master weights); else fp32
};

// Chooses the optimizer. If training.optimizer cannot run on the device, optimizer_fallback is used; without
// a fallback the result is an error with the reason. `has_backend`: Octavo has code for the device.
Result<OptimizerChoice> choose_optimizer(const TrainingSettings& training, const torch::Device& device,
                                         bool has_backend);

// Returns the name of the setting in octavo::torch and in the config.
const char* offload_name(Offload offload);

// Returns octavo::torch's name for the master weights of bf16 weights: "24", "32", "stochastic" or "none".
const char* master_name(octavo::WeightStore store);

// Returns the title of the algorithm and its state format, for example "Title 8-bit".
std::string optimizer_text(const OptimizerName& name);

// The states that an optimizer of the plan will create: their bytes, and the bytes of each buffer on the
// device, in the order of allocation.
struct PlannedStates {
  StepOptimizer::Bytes bytes;
  std::vector<std::int64_t> buffers;  // codes and scales of moments
  std::vector<std::int64_t> masters;
};
PlannedStates planned_states(const OptimizerChoice& plan, const TrainingSettings& training,
                             const ParameterGroups& groups);
// Returns a rank's part of them.
PlannedStates planned_states(const OptimizerChoice& plan, const TrainingSettings& training,
                             const ParameterGroups& groups, const ParallelLayout& layout, int rank);

// Returns the bytes of moments, scales and master bits that the optimizer will allocate for the groups, with
// separate figures for host memory.
StepOptimizer::Bytes planned_bytes(const OptimizerChoice& plan, const TrainingSettings& training,
                                   const ParameterGroups& groups);
// Returns a rank's part of them.
StepOptimizer::Bytes planned_bytes(const OptimizerChoice& plan, const TrainingSettings& training,
                                   const ParameterGroups& groups, const ParallelLayout& layout, int rank);
// Returns the bytes for one group with the run's own options.
StepOptimizer::Bytes planned_bytes(const OptimizerChoice& plan, const TrainingSettings& training,
                                   const NamedTensors& parameters);

// Creates the optimizer. With `shards`, which are of the same groups and outlive it, it steps their pieces.
// REQUIRES: parameters of the plan's dtype on their device; a native plan if `shards` is given. Throws
// c10::Error.
std::unique_ptr<StepOptimizer> make_optimizer(const OptimizerChoice& plan, const TrainingSettings& training,
                                              ParameterGroups groups, const ShardedWeights* shards = nullptr);
std::unique_ptr<StepOptimizer> make_optimizer(const OptimizerChoice& plan, const TrainingSettings& training,
                                              NamedTensors parameters);

}  // namespace octavo_train
