// The optimizer of a run: an optimizer of octavo::torch over the run's parameter groups. It clips the
// gradient norm, and it skips the complete step if a gradient is not finite. It steps complete parameters, or
// this rank's pieces of them. Saved and loaded states are always those of complete parameters.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"
#include "train/optim/param_groups.h"

#include <octavo/torch/optim.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace octavo_train {

class BucketLayout;
class ShardedWeights;

class StepOptimizer {
 public:
  // With `shards`, which are of the same groups and outlive the optimizer, it steps their pieces. REQUIRES:
  // parameters on their device and in their training types. Throws c10::Error.
  StepOptimizer(const TrainingSettings& training, ParameterGroups groups,
                const ShardedWeights* shards = nullptr);
  StepOptimizer(const StepOptimizer&) = delete;
  StepOptimizer& operator=(const StepOptimizer&) = delete;

  // Sets the learning rate of the schedule. Rates of groups with their own learning_rate change in
  // proportion.
  void set_learning_rate(double rate);
  // Sets the loss scale, by which step() divides the gradients: one float on the parameters' device, or
  // undefined.
  void set_loss_scale(torch::Tensor scale) { optimizer_->set_loss_scale(std::move(scale)); }
  void step() { optimizer_->step(); }

  // Return results of the last step as 0-d tensors on its device: the gradient norm (before clipping, still
  // multiplied by the loss scale), and a number that is not 0 if the step was skipped.
  [[nodiscard]] torch::Tensor grad_norm() const { return optimizer_->grad_norm(); }
  [[nodiscard]] torch::Tensor skipped() const { return optimizer_->skipped(); }

  // Makes all work queued from now on see updated weights: all weights, or those of a module. Offloaded
  // weights may be updated while the next forward pass runs, so call this before any use of a weight, except
  // in forward passes with a gate (TaskModel::set_gate).
  void wait() { optimizer_->wait(); }
  void wait(const torch::nn::Module& module) { optimizer_->wait(module); }
  // offloads_gradient() returns true if the gradient of a parameter (by number) is offloaded to host memory
  // while backward() runs, unless it comes in parts. offload_gradient() offloads a gradient that is still on
  // the device. drop_gradients() discards the offloaded gradients.
  [[nodiscard]] bool offloads_gradient(std::size_t parameter);
  void offload_gradient(std::size_t parameter) { optimizer_->offload_gradient(stepped_[parameter].second); }
  void drop_gradients() { optimizer_->drop_gradients(); }

  struct Bytes {
    std::int64_t states = 0, master = 0, workspace = 0;
    // Bytes in host memory if states are offloaded. `host_copies`: copies of weights and gradients.
    std::int64_t host_states = 0, host_master = 0, host_copies = 0;
  };
  [[nodiscard]] Bytes bytes() const;  // on this rank

  // Save and load the state of every parameter: tensors named after the parameter, and a JSON object of
  // numbers. load() checks everything first: on an error, which names what differs, nothing has changed. It
  // copies the tensors that it keeps. With pieces, save() is collective: rank 0 gets the tensors, the other
  // ranks get none. load() keeps this rank's pieces.
  void save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const;
  Status load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars);

 private:
  using States = std::vector<std::unique_ptr<octavo::torch::ParamState>>;

  void register_pieces();
  [[nodiscard]] octavo::torch::Kind kind_of(std::size_t parameter) const;
  [[nodiscard]] bool is_offloaded(const torch::Tensor& tensor) const;
  [[nodiscard]] Status check_kinds(const States& states) const;

  octavo::Algorithm algorithm_;
  NamedTensors parameters_;  // of all groups, in the model's order
  NamedTensors stepped_;     // the parameters, or this rank's pieces of them
  std::vector<GroupOptions> groups_;
  std::vector<std::size_t> group_;  // by parameter
  double highest_rate_;
  const ShardedWeights* shards_;     // null: complete parameters are stepped
  bool offloads_gradients_ = false;  // to host memory
  std::unique_ptr<octavo::torch::Optimizer> optimizer_;
};

// The optimizer's states in a checkpoint. StepOptimizer::load() checks everything and then changes it, and
// load() here does the same, so this must be the last component of a run.
class OptimizerComponent : public Checkpointable {
 public:
  explicit OptimizerComponent(StepOptimizer& optimizer) : optimizer_(optimizer) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return kOptimizerComponent; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const override {
    optimizer_.save(tensors, scalars);
  }
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars) override {
    RETURN_IF_ERROR(optimizer_.load(tensors, scalars));
    return Commit([] {});
  }

 private:
  StepOptimizer& optimizer_;
};

// The states that an optimizer will create: their bytes, with separate figures for host memory, and the bytes
// of each buffer on the device, in the order of allocation.
struct PlannedStates {
  StepOptimizer::Bytes bytes;
  std::vector<std::int64_t> buffers;  // codes and scales of moments
  std::vector<std::int64_t> masters;
};
// With a layout: only the states that a rank creates.
PlannedStates planned_states(const TrainingSettings& training, const ParameterGroups& groups,
                             const BucketLayout* layout = nullptr, int rank = 0);

// Returns true if weights of two or more dimensions are bf16 (with the settings' master weights); else all
// weights are fp32.
bool has_bf16_weights(const TrainingSettings& training);

// Returns the name of the setting in octavo::torch and in the config.
const char* offload_name(Offload offload);

// Returns octavo::torch's name for the master weights of bf16 weights: "24", "32", "stochastic" or "none".
const char* master_name(octavo::WeightStore store);

// Returns the title of the algorithm and its state format, for example "Title 8-bit".
std::string optimizer_text(const OptimizerName& name);

// Returns an error if a parameter's saved state belongs to another algorithm, because its moments have
// another meaning. States saved by version 0.1 do not name their algorithm and are accepted.
Status check_algorithm(const nlohmann::ordered_json& state, const std::string& parameter,
                       octavo::Algorithm algorithm);

// Finds a tensor of save() by its name, "<parameter>.<part>". Returns null if there is none.
const torch::Tensor* find_tensor(const NamedTensors& tensors, const std::string& name);

}  // namespace octavo_train
