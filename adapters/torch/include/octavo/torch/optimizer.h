// The base class of all classes of octavo/torch/optim.h: a torch::optim::Optimizer over native multi-tensor
// steps. A step first checks all groups; an error throws before anything is written. Then it makes one native
// call per group, device and step count, on the current stream, without waiting for it. Not thread-safe, like
// torch's optimizers. Must not be used inside a CUDA graph capture.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/norms.h>
#include <octavo/torch/plan.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace octavo::torch {

class Optimizer : public ::torch::optim::Optimizer {
 public:
  using Tensor = ::torch::Tensor;
  using ParamGroup = ::torch::optim::OptimizerParamGroup;

  // One step over every parameter that has a gradient. Returns the closure's loss.
  Tensor step(LossClosure closure = nullptr) override;

  // torch's, with the group's options completed and checked; on an error the group is not added.
  void add_param_group(const ParamGroup& group);

  // The norm of the last step's gradients before clipping (a 0-d tensor on their device), where max_grad_norm
  // or guard had it computed; else undefined.
  Tensor grad_norm() const { return norm_.defined() ? norm_[0].clone() : Tensor(); }
  // Whether the guard skipped the last step. Waits for the device.
  bool last_step_skipped() const;
  // The same without waiting: 0-d, 0 or 1, on the device of the first gradient; undefined without the guard.
  Tensor skipped() const;

  // Dynamic loss scaling: gradients are divided by this inside the step, before clipping. One float on the
  // parameters' device, read at each step; undefined (the default): gradients are not divided. grad_norm() is
  // the norm of the scaled gradients.
  void set_loss_scale(Tensor scale);

  const char* algorithm() const { return algorithm_->info.name; }  // as options call it

  // Bytes of moments, scales and master bits.
  std::int64_t state_bytes() const;
  // Bytes of the workspaces of steps and norms, after the first step.
  std::int64_t workspace_bytes() const;
  // A parameter's state; null before its first step.
  const ParamState* state_of(const Tensor& param) const;
  // Sets the state of a parameter, for checkpoints of another kind than save() writes. Throws and changes
  // nothing where the state does not fit, or the parameter belongs to another optimizer.
  void set_state(const Tensor& param, std::unique_ptr<ParamState> state);

  // Groups must be those that were saved, in the same order: parameters have no names here. Options are
  // loaded with the states. Everything is checked first: on an error nothing has changed.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 protected:
  Optimizer(const std::vector<ParamGroup>& groups, std::unique_ptr<Options> defaults);

 private:
  struct Work {
    std::vector<Item> items;
    std::vector<Kind> kinds;  // empty: the plan of an earlier step fits
    PlanKey key;
  };

  const Options& own_defaults() const { return static_cast<const Options&>(*defaults_); }
  const Options& options_of(std::size_t group) const;
  ParamState* find_state(const Tensor& param) const;
  void complete_groups();
  std::vector<Work> look();
  void prepare(std::size_t group, Work& work);
  void launch(std::size_t group, const Work& work, const DeviceNorms& norms);
  Tensor& report_of(const ::torch::Device& device);

  const Algorithm* algorithm_;
  const char* name_;
  std::vector<std::optional<Plan>> plans_;  // one per group
  Norms norms_;
  Tensor norm_;
  Tensor loss_scale_;
  std::vector<Tensor> reports_;  // octavo_device_report, one per device
};

inline Optimizer::Optimizer(const std::vector<ParamGroup>& groups, std::unique_ptr<Options> defaults)
    : ::torch::optim::Optimizer(std::vector<ParamGroup>{}, std::move(defaults)),
      algorithm_(&own_defaults().algorithm()),
      name_(algorithm_->info.title) {
  own_defaults().check();
  for (const ParamGroup& group : groups) add_param_group(group);
}

inline void Optimizer::add_param_group(const ParamGroup& group) {
  ::torch::optim::Optimizer::add_param_group(group);
  // torch may have merged nothing, or only the defaults. The options that the caller gave are used.
  if (group.has_options()) param_groups_.back().set_options(group.options().clone());
  try {
    complete_groups();
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
}

// Groups may also be added through torch's base class, whose function is not virtual. So this is checked at
// every step.
inline void Optimizer::complete_groups() {
  bool complete = plans_.size() == param_groups_.size();
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    auto* options = dynamic_cast<Options*>(&param_groups_[g].options());
    TORCH_CHECK(
        options != nullptr && typeid(*options) == typeid(*defaults_) && &options->algorithm() == algorithm_,
        "octavo::torch::", name_, ": group ", g,
        " has options of another class, expected octavo::torch::", name_, "Options");
    if (options->complete()) continue;
    const Settings& mine = options->settings();
    const Settings& all = own_defaults().settings();
    TORCH_CHECK(!mine.max_grad_norm.given || mine.max_grad_norm.value == all.max_grad_norm.value,
                "octavo::torch::", name_, ": group ", g,
                ": max_grad_norm is of the whole optimizer; set it on the optimizer's options");
    TORCH_CHECK(!mine.guard.given || mine.guard.value == all.guard.value, "octavo::torch::", name_,
                ": group ", g, ": guard is of the whole optimizer; set it on the optimizer's options");
    const std::unique_ptr<::torch::optim::OptimizerOptions> merged = options->clone();
    static_cast<Options&>(*merged).inherit(own_defaults());
    static_cast<Options&>(*merged).check();
    options->inherit(own_defaults());
    complete = false;
  }
  if (complete) return;
  std::unordered_set<const void*> seen;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& params = param_groups_[g].params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const Where where{name_, g, i};
      check_param(params[i], where);
      TORCH_CHECK(seen.insert(params[i].unsafeGetTensorImpl()).second, where,
                  "it is there twice, and one step would write it twice");
      store_of(params[i], options_of(g).settings().master.value, where);
    }
  }
  plans_.resize(param_groups_.size());
}

inline const Options& Optimizer::options_of(std::size_t group) const {
  return static_cast<const Options&>(param_groups_[group].options());
}

inline ParamState* Optimizer::find_state(const Tensor& param) const {
  const auto found = state_.find(param.unsafeGetTensorImpl());
  return found == state_.end() ? nullptr : dynamic_cast<ParamState*>(found->second.get());
}

inline const ParamState* Optimizer::state_of(const Tensor& param) const { return find_state(param); }

inline std::int64_t Optimizer::workspace_bytes() const {
  std::int64_t total = norms_.workspace_bytes();
  for (const std::optional<Plan>& plan : plans_) {
    if (!plan) continue;
    for (const Cohort& cohort : plan->cohorts) total += cohort.group.workspace_bytes();
  }
  return total;
}

inline std::int64_t Optimizer::state_bytes() const {
  std::int64_t total = 0;
  for (const auto& group : param_groups_) {
    for (const Tensor& param : group.params()) {
      if (const ParamState* state = find_state(param)) total += state->bytes();
    }
  }
  return total;
}

}  // namespace octavo::torch

#include <octavo/torch/checkpoint.h>  // IWYU pragma: export
#include <octavo/torch/step.h>        // IWYU pragma: export
