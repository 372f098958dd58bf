// Hooks on parameters: torch calls one when the gradient of its parameter is complete. Gradient release steps
// the parameter then, and offload_gradients moves the gradient to host memory. Autograd has a thread per
// device, so hooks wait for each other.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

namespace octavo::torch {

class GradientHooks {
 public:
  using Call = std::function<void(const ::torch::Tensor& param)>;

  GradientHooks() : link_(std::make_shared<Link>()) {}
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  // Removes all hooks, because parameters may outlive their optimizer.
  ~GradientHooks() {
    const std::lock_guard<std::recursive_mutex> lock(link_->mutex);
    link_->call = nullptr;
    remove_except({});
  }

  // Hooks call this from now on.
  void set_call(Call call) {
    const std::lock_guard<std::recursive_mutex> lock(link_->mutex);
    link_->call = std::move(call);
  }
  std::recursive_mutex& mutex() { return link_->mutex; }

  // Adds hooks to parameters that require gradients, and removes those of parameters that left the groups.
  void update(const std::vector<::torch::optim::OptimizerParamGroup>& groups) {
    std::size_t hooked = 0;
    for (const auto& group : groups) {
      for (const ::torch::Tensor& param : group.params()) {
        const bool is_hooked = param.defined() && is_mine(param);
        if (is_hooked) ++hooked;
        if (is_hooked || !param.requires_grad() || !param.is_leaf()) continue;
        TORCH_CHECK(::torch::autograd::impl::post_acc_grad_hooks(param) == nullptr,
                    "octavo::torch: gradient_release and offload_gradients: a parameter has a "
                    "post-accumulate-grad hook already, of another optimizer for example; remove it first");
        ::torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<Hook>(link_));
        hooked_.push_back(param);
        ++hooked;
      }
    }
    if (hooked == hooked_.size()) return;
    std::unordered_set<const void*> current;
    for (const auto& group : groups) {
      for (const ::torch::Tensor& param : group.params()) current.insert(param.unsafeGetTensorImpl());
    }
    remove_except(current);
  }

 private:
  struct Link {
    std::recursive_mutex mutex;
    Call call;
  };
  struct Hook : ::torch::autograd::PostAccumulateGradHook {
    explicit Hook(std::shared_ptr<Link> to) : link(std::move(to)) {}
    void operator()(const ::torch::Tensor& param) override {
      const std::lock_guard<std::recursive_mutex> lock(link->mutex);
      if (link->call) link->call(param);
    }
    std::shared_ptr<Link> link;
  };

  bool is_mine(const ::torch::Tensor& param) const {
    // A tensor that never required a gradient has no place for hooks.
    if (::torch::autograd::impl::get_autograd_meta(param) == nullptr) return false;
    const auto* hook = dynamic_cast<const Hook*>(::torch::autograd::impl::post_acc_grad_hooks(param).get());
    return hook != nullptr && hook->link == link_;
  }
  void remove_except(const std::unordered_set<const void*>& current) {
    const auto first = std::partition(hooked_.begin(), hooked_.end(), [&](const ::torch::Tensor& param) {
      return current.count(param.unsafeGetTensorImpl()) != 0;
    });
    for (auto param = first; param != hooked_.end(); ++param) {
      if (is_mine(*param)) ::torch::autograd::impl::set_post_acc_grad_hooks(*param, nullptr);
    }
    hooked_.erase(first, hooked_.end());
  }

  std::shared_ptr<Link> link_;
  std::vector<::torch::Tensor> hooked_;
};

}  // namespace octavo::torch
