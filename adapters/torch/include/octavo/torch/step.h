// The step of octavo::torch::Optimizer, in the order in which it happens: look, prepare, norm, launch.
// Nothing is written before all groups have been looked at and prepared. Included by optimizer.h.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

namespace octavo::torch {

inline ::torch::Tensor Optimizer::step(LossClosure closure) {
  Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const ::torch::NoGradGuard no_grad;
  complete_groups();
  std::vector<Work> works = look();
  for (std::size_t g = 0; g < works.size(); ++g) prepare(g, works[g]);

  const Settings& all = own_defaults().settings();
  DeviceNorms norms;
  norm_ = Tensor();
  if (all.guard.value || all.max_grad_norm.value > 0) {
    std::vector<Tensor> grads;
    for (const Work& work : works) {
      for (const Item& item : work.items) grads.push_back(item.grad);
    }
    if (!grads.empty()) {
      norms = norms_.total(grads);
      norm_ = norms[0].second;
    }
  }
  for (std::size_t g = 0; g < works.size(); ++g) launch(g, works[g], norms);
  return loss;
}

// The parameters that have gradients, all checked, and whether the plans of earlier steps still fit.
inline std::vector<Optimizer::Work> Optimizer::look() {
  own_defaults().check();
  std::vector<Work> works(param_groups_.size());
  std::uint64_t id = 0;
  for (std::size_t g = 0; g < works.size(); ++g) {
    Work& work = works[g];
    const Options& options = options_of(g);
    options.check();
    work.key = {options.switches(), own_defaults().settings().guard.value, options.settings().master.value};
    const auto& params = param_groups_[g].params();
    for (std::size_t i = 0; i < params.size(); ++i, ++id) {
      const Where where{name_, g, i};
      const Tensor& grad = params[i].grad();
      if (!grad.defined()) continue;
      check_param(params[i], where);
      check_grad(params[i], grad, where);
      work.items.push_back({params[i], in_memory_order(grad, params[i]), i, id, find_state(params[i])});
    }
    const std::optional<Plan>& plan = plans_[g];
    if (plan && plan->key == work.key && plan->signatures == signatures(work.items)) continue;
    for (const Item& item : work.items) {
      const Where where{name_, g, item.index};
      work.kinds.push_back(kind_of(item.param, item.grad.scalar_type(), options, item.state, where));
      if (item.state != nullptr) check_state(*item.state, work.kinds.back(), where);
    }
    if (work.items.empty()) plans_[g].reset();
  }
  return works;
}

// Makes and moves states where needed, then makes one native group per device and step count.
inline void Optimizer::prepare(std::size_t group, Work& work) {
  if (work.kinds.empty()) {
    if (plans_[group]) {
      for (Cohort& cohort : plans_[group]->cohorts) cohort.bind_grads(work.items);
    }
    return;
  }
  for (std::size_t i = 0; i < work.items.size(); ++i) {
    Item& item = work.items[i];
    if (item.state == nullptr) {
      auto made = std::make_unique<ParamState>();
      item.state = made.get();
      state_[item.param.unsafeGetTensorImpl()] = std::move(made);
    }
    complete_state(*item.state, item.param, work.kinds[i], algorithm_->info.first_step_fills != 0);
  }
  Plan plan = make_plan(work.key, work.items, work.kinds, options_of(group));
  for (Cohort& cohort : plan.cohorts) {
    for (std::size_t member : cohort.members) work.items[member].state->count = cohort.count;
  }
  plan.signatures = signatures(work.items);
  plans_[group] = std::move(plan);
}

inline void Optimizer::launch(std::size_t group, const Work& work, const DeviceNorms& norms) {
  if (!plans_[group]) return;
  const Settings& all = own_defaults().settings();
  octavo_step_args args = options_of(group).step_args();
  args.guard = all.guard.value ? 1 : 0;
  if (loss_scale_.defined()) args.scalar_loss_scale = loss_scale_.data_ptr<float>();
  for (Cohort& cohort : plans_[group]->cohorts) {
    if (const Tensor* norm = norm_on(norms, cohort.device)) {
      args.scalar_norm = static_cast<const octavo_device_norm*>(norm->data_ptr());
      args.max_norm = all.max_grad_norm.value;
    }
    auto* count = static_cast<std::int64_t*>(cohort.count.data_ptr());
    if (all.guard.value) {  // only the device knows whether the step is taken
      args.scalar_step = count;
      args.scalar_report = static_cast<octavo_device_report*>(report_of(cohort.device).data_ptr());
      cohort.group.step(args);
    } else {
      args.step = *count + 1;
      cohort.group.step(args);
      ++*count;
    }
  }
  for (const Item& item : work.items) {
    if (!item.param.is_inference()) item.param.unsafeGetTensorImpl()->bump_version();
  }
}

inline ::torch::Tensor& Optimizer::report_of(const ::torch::Device& device) {
  for (Tensor& report : reports_) {
    if (report.device() == device) return report;
  }
  const auto options = ::torch::TensorOptions().dtype(::torch::kInt64).device(device);
  return reports_.emplace_back(::torch::zeros({2}, options));
}

inline ::torch::Tensor Optimizer::skipped() const {
  if (!own_defaults().settings().guard.value || reports_.empty()) return {};
  // The count over all devices decides, so every report says the same.
  static_assert(offsetof(octavo_device_report, skipped) == 0);
  return reports_[0].view(::torch::kUInt8)[0];
}

inline void Optimizer::set_loss_scale(Tensor scale) {
  if (scale.defined()) {
    TORCH_CHECK(scale.scalar_type() == ::torch::kFloat32 && scale.numel() == 1, "octavo::torch::", name_,
                ": loss_scale: got ", scale.numel(), " of ", c10::toString(scale.scalar_type()),
                ", expected one Float");
    for (const auto& group : param_groups_) {
      for (const Tensor& param : group.params()) {
        TORCH_CHECK(param.device() == scale.device(), "octavo::torch::", name_, ": loss_scale is on ",
                    scale.device(), ", expected ", param.device(), ", where the parameters are");
      }
    }
  }
  loss_scale_ = std::move(scale);
}

inline bool Optimizer::last_step_skipped() const {
  if (!own_defaults().settings().guard.value) return false;
  for (const Tensor& report : reports_) {
    const Tensor here = report.cpu();
    if (static_cast<const octavo_device_report*>(here.data_ptr())->skipped != 0) return true;
  }
  return false;
}

}  // namespace octavo::torch
