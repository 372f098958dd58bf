// Torch calls a hook when the gradient of a parameter is complete, and the optimizer uses it and frees it:
// gradient release steps the parameter, offload_gradients takes the gradient to host memory. Autograd has a
// thread per device, so hooks wait for one another.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace octavo::torch {

class Optimizer;

class ReleaseHooks {
 public:
  explicit ReleaseHooks(Optimizer* owner) : link_(std::make_shared<Link>()) { link_->owner = owner; }
  ReleaseHooks(const ReleaseHooks&) = delete;
  ReleaseHooks& operator=(const ReleaseHooks&) = delete;
  // Parameters may outlive their optimizer; its hooks must not.
  ~ReleaseHooks() {
    const std::lock_guard<std::recursive_mutex> lock(link_->mutex);
    link_->owner = nullptr;
    for (const ::torch::Tensor& param : hooked_) {
      if (is_mine(param)) ::torch::autograd::impl::set_post_acc_grad_hooks(param, nullptr);
    }
  }

  void belong_to(Optimizer* owner) {
    const std::lock_guard<std::recursive_mutex> lock(link_->mutex);
    link_->owner = owner;
  }
  // Hooks the owner's parameters that require gradients, and releases parameters that it does not have any
  // more.
  void watch();
  std::recursive_mutex& mutex() { return link_->mutex; }

 private:
  struct Link {
    std::recursive_mutex mutex;
    Optimizer* owner = nullptr;
  };
  struct Hook : ::torch::autograd::PostAccumulateGradHook {
    explicit Hook(std::shared_ptr<Link> to) : link(std::move(to)) {}
    void operator()(const ::torch::Tensor& param) override;
    std::shared_ptr<Link> link;
  };
  bool is_mine(const ::torch::Tensor& param) const {
    const auto* hook = dynamic_cast<const Hook*>(::torch::autograd::impl::post_acc_grad_hooks(param).get());
    return hook != nullptr && hook->link == link_;
  }

  void release_gone();

  std::shared_ptr<Link> link_;
  std::vector<::torch::Tensor> hooked_;
};

}  // namespace octavo::torch
