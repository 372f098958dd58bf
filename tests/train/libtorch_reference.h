// The optimizers of LibTorch (adam, adamw, sgd) with the run's options, as a reference: they clip the
// gradient norm and divide by the loss scale as StepOptimizer does. saved() returns their states as earlier
// versions of octavo saved them on GPUs that they had no kernels for.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/train/parts_support.h"
#include "train/config/options.h"

#include <octavo/describe.h>

#include <algorithm>
#include <cmath>

namespace octavo_train {

class LibtorchReference {
 public:
  LibtorchReference(const TrainingSettings& t, NamedTensors parameters)
      : parameters_(std::move(parameters)), algorithm_(t.optimizer.algorithm), max_norm_(t.max_grad_norm) {
    const octavo::HyperParams h = hyper_params(t, algorithm_);
    slots_ = octavo::slots(algorithm_, group_config(t, algorithm_).switches);
    const ParameterGroups groups = one_group(t, parameters_);
    const double decay = groups.options[0].weight_decay;
    const auto adam = [&]<class Options>(Options options) {
      return options.betas({h.beta1, h.beta2}).eps(h.eps).weight_decay(decay).amsgrad(slots_.size() > 2);
    };
    using namespace torch::optim;
    if (algorithm_ == octavo::Algorithm::adamw) {
      optimizer_ = std::make_unique<AdamW>(groups.tensors_of(0), adam(AdamWOptions(t.learning_rate)));
    } else if (algorithm_ == octavo::Algorithm::adam) {
      optimizer_ = std::make_unique<Adam>(groups.tensors_of(0), adam(AdamOptions(t.learning_rate)));
    } else {
      TORCH_CHECK(algorithm_ == octavo::Algorithm::sgd, "LibTorch has no such optimizer");
      optimizer_ = std::make_unique<SGD>(groups.tensors_of(0), SGDOptions(t.learning_rate)
                                                                   .momentum(h.momentum)
                                                                   .dampening(h.dampening)
                                                                   .nesterov(h.nesterov)
                                                                   .weight_decay(decay));
    }
  }

  void set_learning_rate(double rate) { optimizer_->param_groups()[0].options().set_lr(rate); }
  void set_loss_scale(torch::Tensor scale) { scale_ = std::move(scale); }
  [[nodiscard]] torch::Tensor grad_norm() const { return norm_; }

  void step() {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> norms;
    for (const auto& [name, param] : parameters_) norms.push_back(param.grad().norm(2, torch::kFloat32));
    norm_ = torch::stack(norms).norm();
    const double unscale = scale_.defined() ? 1.0 / scale_.item<double>() : 1.0;
    const double norm = norm_.item<double>() * unscale;
    const double clip = max_norm_ > 0 ? std::min(1.0, max_norm_ / (norm + 1e-6)) : 1.0;
    for (const auto& [name, param] : parameters_) param.grad().mul_(clip * unscale);
    optimizer_->step();
  }

  // Takes steps with the gradients of take_steps().
  void take_steps(std::int64_t from, std::int64_t to) {
    for (std::int64_t number = from; number <= to; ++number) {
      give_gradients(parameters_, number);
      step();
    }
  }

  [[nodiscard]] Saved saved() const {
    Saved out;
    for (const auto& [name, param] : parameters_) {
      const auto found = optimizer_->state().find(param.unsafeGetTensorImpl());
      if (found == optimizer_->state().end()) continue;
      std::vector<torch::Tensor> tensors;
      std::int64_t steps = 0;
      const auto read_adam = [&]<class State>(const State& state) {
        tensors = {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
        steps = state.step();
      };
      if (algorithm_ == octavo::Algorithm::adamw)
        read_adam(static_cast<const torch::optim::AdamWParamState&>(*found->second));
      else if (algorithm_ == octavo::Algorithm::adam)
        read_adam(static_cast<const torch::optim::AdamParamState&>(*found->second));
      else
        tensors = {static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer()};
      out.numbers[name] = {{"step", steps},
                           {"format", "fp32"},
                           {"block_size", 0},
                           {"algorithm", std::string(octavo::name(algorithm_))}};
      for (std::size_t slot = 0; slot < slots_.size(); ++slot)
        out.tensors.emplace_back(name + '.' + std::string(slots_[slot].name), tensors[slot].clone());
    }
    return out;
  }

 private:
  NamedTensors parameters_;
  octavo::Algorithm algorithm_;
  double max_norm_;
  std::span<const octavo::Slot> slots_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  torch::Tensor scale_, norm_;
};

}  // namespace octavo_train
