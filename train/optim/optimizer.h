// The optimizer of a run, as the loop sees it: Octavo's own, or, on devices that it has no code for, plain
// LibTorch's with fp32 states. Both clip the norm of the gradients, and skip a whole step where a gradient is
// not finite.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/nn/named_tensors.h"
#include "train/optim/param_groups.h"

#include <octavo/status.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace octavo::train {

class ParallelLayout;
class ShardedWeights;

class StepOptimizer {
 public:
  StepOptimizer() = default;
  virtual ~StepOptimizer() = default;
  StepOptimizer(const StepOptimizer&) = delete;
  StepOptimizer& operator=(const StepOptimizer&) = delete;

  // The rate of the schedule; groups with a rate of their own get theirs in proportion.
  virtual void set_learning_rate(double rate) = 0;
  // Gradients are divided by it in the step: one float on the parameters' device, or undefined.
  virtual void set_loss_scale(torch::Tensor scale) = 0;
  virtual void step() = 0;

  // Of the last step, 0-d on its device: the norm of the gradients (before clipping, still multiplied by the
  // loss scale), and whether the step was skipped (not 0).
  [[nodiscard]] virtual torch::Tensor grad_norm() const = 0;
  [[nodiscard]] virtual torch::Tensor skipped() const = 0;

  // Offloaded weights may be updated while the next pass runs. What is queued from now on sees them up to
  // date: all of them, or those of a module. Before any use of a weight but in gated passes (Task::set_gate).
  virtual void wait() {}
  virtual void wait(const torch::nn::Module& /*module*/) {}
  // Whether the gradient of a parameter (by its number) goes to host memory while backward() runs, unless it
  // comes in parts; take() does it for one that is still here, and drop() forgets what was taken.
  [[nodiscard]] virtual bool takes(std::size_t /*parameter*/) { return false; }
  virtual void take(std::size_t /*parameter*/) {}
  virtual void drop() {}

  struct Bytes {
    std::int64_t states = 0, master = 0, workspace = 0;
    // In host memory, where they are offloaded; copies: of weights and gradients.
    std::int64_t host_states = 0, host_master = 0, host_copies = 0;
  };
  [[nodiscard]] virtual Bytes bytes() const = 0;  // of this rank

  // The state of every parameter: tensors named after it, and a JSON object of numbers. load() checks all of
  // it first; on an error, which names what differs, nothing has changed. It copies what it keeps.
  // Both speak of whole parameters, whatever ranks have of them. Where they have pieces, all ranks call
  // save() together: rank 0 gets the tensors, and the others none. load() cuts this rank's out.
  virtual void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const = 0;
  virtual Status load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) = 0;
};

// What was asked for and what it takes, known before anything is allocated.
struct OptimizerPlan {
  OptimizerName name;
  bool native = true;         // Octavo's own; else plain LibTorch's
  std::string warning;        // why name is not what was asked for; else empty
  bool bf16_weights = false;  // the weights are bf16 (with the master that the settings say); else fp32
};

// Takes optimizer_fallback where `optimizer` cannot run on the device; without one that is an error that says
// why. `has_backend`: Octavo has code for the device.
Result<OptimizerPlan> plan_optimizer(const TrainingSettings& training, const torch::Device& device,
                                     bool has_backend);

// As octavo::torch and the config call it.
const char* offload_name(Offload offload);

// What bf16 weights keep besides, as octavo::torch calls it: "24", "32", "stochastic" or "none".
const char* master_name(WeightStore store);

// The title of the algorithm and its format, as in "Title 8-bit".
std::string optimizer_text(const OptimizerName& name);

// The states that an optimizer of the plan will make: their bytes, and each buffer on the device, as they are
// allocated.
struct PlannedStates {
  StepOptimizer::Bytes bytes;
  std::vector<std::int64_t> buffers;  // of moments: codes and scales
  std::vector<std::int64_t> masters;
};
PlannedStates planned_states(const OptimizerPlan& plan, const TrainingSettings& training,
                             const ParameterGroups& groups);
// What a rank has of that.
PlannedStates planned_states(const OptimizerPlan& plan, const TrainingSettings& training,
                             const ParameterGroups& groups, const ParallelLayout& layout, int rank);

// Bytes of the moments and scales of the groups, as the optimizer will allocate them, and of master bits,
// those in host memory apart.
StepOptimizer::Bytes planned_bytes(const OptimizerPlan& plan, const TrainingSettings& training,
                                   const ParameterGroups& groups);
// What a rank has of that.
StepOptimizer::Bytes planned_bytes(const OptimizerPlan& plan, const TrainingSettings& training,
                                   const ParameterGroups& groups, const ParallelLayout& layout, int rank);
// Those of one group with the plan's options.
StepOptimizer::Bytes planned_bytes(const OptimizerPlan& plan, const TrainingSettings& training,
                                   const NamedTensors& parameters);

// `shards`, of the same groups: it steps their pieces; they outlive it. REQUIRES: parameters of the plan's
// dtype on their device; a native plan where there are shards. Throws c10::Error.
std::unique_ptr<StepOptimizer> make_optimizer(const OptimizerPlan& plan, const TrainingSettings& training,
                                              ParameterGroups groups, const ShardedWeights* shards = nullptr);
std::unique_ptr<StepOptimizer> make_optimizer(const OptimizerPlan& plan, const TrainingSettings& training,
                                              NamedTensors parameters);

}  // namespace octavo::train
