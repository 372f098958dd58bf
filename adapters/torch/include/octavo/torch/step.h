// The step of octavo::torch::Optimizer, in the order in which it happens: look, prepare, begin, norm, step;
// and gradient release, which does this for one parameter at a time (offload.h has what offload adds).
// Nothing is written before all parameters have been looked at and prepared. Included by optimizer.h.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

#include <algorithm>

namespace octavo::torch {

inline ::torch::Tensor Optimizer::step(LossClosure closure) {
  Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const ::torch::NoGradGuard no_grad;
  if (attached_) wait(), used_scalars_.clear();
  std::vector<Item> items = look();
  if (whole().gradient_release.value) {
    const std::lock_guard<std::recursive_mutex> lock(hooks_->mutex());
    for (const Item& item : items) ready(item);
    finish();
    return loss;
  }
  prepare(items);
  tell_order();
  begin(items);
  const std::vector<NormPart> parts = needs_norm() ? norm_parts(items) : std::vector<NormPart>();
  const Call call = call_with(!parts.empty(), whole().guard.value, attached_);
  norm_ = Tensor();
  take_norm(parts, call.args);
  const octavo_status status = octavo_engine_step(engine_.get(), &call.args, nullptr);
  rethrow();
  expect(status);
  bump(items);
  hand_over(items);
  return loss;
}

// The parameters that have gradients, all checked.
inline std::vector<Item> Optimizer::look() {
  own_defaults().check();
  complete_groups();
  for (std::size_t g = 0; g < param_groups_.size(); ++g) set_group(g, options_of(g));
  std::vector<Item> items;
  for (std::uint32_t handle = 0; handle < places_.size(); ++handle) {
    const bool taken = held(handle), here = param_of(handle).grad().defined();
    if (taken && here) take(handle);  // somebody has given it another one since
    if (taken || here) items.push_back(item_of(handle));
  }
  return items;
}

inline Item Optimizer::item_of(std::uint32_t handle) const {
  const Tensor& param = param_of(handle);
  check_param(param, where(handle));
  Item item{param, Tensor(), handle, where(handle), find_state(param)};
  if (!param.grad().defined()) return item;
  check_grad(param, param.grad(), where(handle));
  item.grad = in_memory_order(param.grad(), param);
  return item;
}

// Makes and moves states where needed, and tells the engine of what has changed since it was told.
inline void Optimizer::prepare(std::vector<Item>& items) {
  place();
  const bool on_device = whole().guard.value || whole().capturable.value || found_inf_.defined();
  std::vector<Item*> changed;
  for (Item& item : items) {
    const Options& options = options_of(item.where.group);
    const Record& record = records_[item.handle];
    if (item.state != nullptr && record.fits(described(item, options, own_of(item.param), record.residence,
                                                       on_device, whole().accumulate_in_fp32.value),
                                             options.switches()))
      continue;
    changed.push_back(&item);
  }
  std::optional<::torch::Device> asked;
  for (const Item& item : items) {
    if (asked == item.param.device()) continue;
    asked = item.param.device();
    if (!native::capturing(native::current_stream(*asked))) continue;
    TORCH_CHECK(whole().capturable.value, item.where,
                "a CUDA graph is being captured, which needs capturable(true) on the optimizer's options");
    TORCH_CHECK(changed.empty(), changed[0]->where,
                "a CUDA graph is being captured, and its state is new or has changed; take a step before");
    break;
  }
  if (changed.empty()) return refresh(items);
  settle();
  std::vector<Kind> kinds;
  for (const Item* item : changed) {
    kinds.push_back(octavo::torch::kind_of(item->param, options_of(item->where.group), own_of(item->param),
                                           item->state, item->where));
    if (item->state != nullptr) check_state(*item->state, kinds.back(), item->where);
  }
  for (std::size_t i = 0; i < changed.size(); ++i) {
    Item& item = *changed[i];
    if (item.state == nullptr) {
      auto made = std::make_unique<ParamState>();
      item.state = made.get();
      state_[item.param.unsafeGetTensorImpl()] = std::move(made);
    }
    complete_state(*item.state, item.param, kinds[i], place_of(item, kinds[i]),
                   algorithm_->info.first_step_fills != 0);
  }
  tell(changed, on_device);
  refresh(items);
}

// A state whose step count the engine does not count in (new, loaded, or elsewhere) gets a count of its own
// first. Waits for a device where its count was there.
inline void Optimizer::tell(const std::vector<Item*>& changed, bool on_device) {
  std::vector<std::uint32_t> handles;
  std::vector<octavo_engine_tensor> tensors;
  for (const Item* item : changed) {
    const Record& record = records_[item->handle];
    const ::torch::Device place = count_device(item->param, record.residence, on_device);
    Tensor& count = item->state->count;
    std::int64_t steps = -2;  // as before
    if (!record.known || !count.defined() || count.data_ptr() != record.told.step ||
        count.device() != place) {
      steps = item->state->step();
      count = ::torch::full({}, steps, ::torch::TensorOptions().dtype(::torch::kInt64).device(place));
    }
    handles.push_back(item->handle);
    tensors.push_back(described(*item, options_of(item->where.group), own_of(item->param), record.residence,
                                on_device, whole().accumulate_in_fp32.value));
    tensors.back().known_steps = steps;
  }
  expect(octavo_engine_set(engine_.get(), handles.data(), tensors.data(),
                           static_cast<std::int64_t>(handles.size())));
  for (std::size_t i = 0; i < changed.size(); ++i) {
    Record& record = records_[handles[i]];
    record.told = tensors[i];
    record.count = changed[i]->state->count;
    record.told.known_steps = -2;
    record.switches = options_of(changed[i]->where.group).switches();
    record.known = true;
    record.version = version_of(changed[i]->param) - 1;  // the engine copies the parameter: see refresh
  }
}

inline DeviceBuffers& Optimizer::buffers_of(const ::torch::Device& device) {
  for (DeviceBuffers& buffers : devices_) {
    if (buffers.device == device) return buffers;
  }
  return devices_.emplace_back(device);
}

// Tells the engine who has a gradient, and makes room for what the step needs.
inline void Optimizer::begin(const std::vector<Item>& items) {
  std::vector<std::uint32_t> handles;
  std::vector<const void*> grads;
  std::vector<std::uint8_t> dtypes;
  for (const Item& item : items) {
    handles.push_back(item.handle);
    grads.push_back(address(item.grad));
    const int dtype = item.grad.defined() ? native::dtype_number(item.grad.scalar_type()) : 0;
    dtypes.push_back(static_cast<std::uint8_t>(dtype));
    buffers_of(item.param.device());
  }
  octavo_engine_plan plan = native::sized<octavo_engine_plan>();
  expect(octavo_engine_begin(engine_.get(), handles.data(), grads.data(), dtypes.data(),
                             static_cast<std::int64_t>(handles.size()), needs_norm() ? 1 : 0, &plan));
  if (plan.number != plan_ || offloads()) make_room();
  plan_ = plan.number;
}

// Workspaces only grow.
inline void Optimizer::make_room() {
  for (DeviceBuffers& buffers : devices_) {
    const std::uint32_t kind = native::device_kind(buffers.device);
    const std::int32_t index = native::device_index(buffers.device);
    const std::int64_t staging = octavo_engine_staging_bytes(engine_.get(), kind, index);
    if (staging > buffers.staging_bytes) {
      settle();
      buffers.staging =
          native::Used(native::bytes(staging + kStagingAlignment, buffers.device), buffers.device);
      buffers.staging_bytes = staging;
    }
    const std::int64_t size = octavo_engine_workspace_bytes(engine_.get(), kind, index);
    if (size <= buffers.workspace_bytes) continue;
    if (whole().capturable.value) kept_.push_back(buffers.workspace.tensor());
    buffers.workspace = native::Used(native::bytes(size, buffers.device), buffers.device);
    buffers.workspace_bytes = size;
  }
}

// What a call of the engine gets: every device with its current stream.
inline Optimizer::Call Optimizer::call_with(bool norm, bool report, bool defer) {
  Call call;
  for (DeviceBuffers& buffers : devices_) {
    const native::MaybeStream stream = native::current_stream(buffers.device);
    octavo_engine_device& device = call.devices.emplace_back(native::sized<octavo_engine_device>());
    device.device_kind = native::device_kind(buffers.device);
    device.device_index = native::device_index(buffers.device);
    device.stream = native::handle_of(stream);
    device.workspace = buffers.workspace.on(stream);
    device.workspace_bytes = buffers.workspace_bytes;
    if (buffers.staging_bytes > 0) {
      device.staging = native::aligned(buffers.staging.on(stream), kStagingAlignment);
      device.staging_bytes = buffers.staging_bytes;
    }
    if (loss_scale_.defined()) device.loss_scale = steady(loss_scale_).data_ptr<float>();
    if (found_inf_.defined()) device.found_inf = steady(found_inf_).data_ptr<float>();
    if (norm) device.norm = as_norm(buffers.norm.on(stream));
    if (report) device.report = static_cast<octavo_device_report*>(buffers.report.on(stream));
  }
  call.args.skip_nonfinite = whole().guard.value ? 1 : 0;
  call.args.defer = defer ? 1 : 0;
  call.args.threads = at::get_num_threads();
  call.args.devices = call.devices.data();  // a vector that moves keeps its memory
  call.args.device_count = static_cast<std::int64_t>(call.devices.size());
  if (reduce_.sum) call.args.add_sums = add_sums, call.args.sums_user = this;
  return call;
}

// What the engine calls where an algorithm measures tensors that ranks share.
inline std::int32_t Optimizer::add_sums(void* self, std::uint32_t kind, std::int32_t index,
                                        std::uint32_t part, double* sums, std::int64_t count) noexcept {
  auto& optimizer = *static_cast<Optimizer*>(self);
  try {
    const ::torch::Device device =
        kind == 0 ? ::torch::Device(::torch::kCPU)
                  : ::torch::Device(::torch::kCUDA, static_cast<c10::DeviceIndex>(index));
    const auto options = ::torch::TensorOptions().dtype(::torch::kFloat64).device(device);
    optimizer.reduce_.sum(part, ::torch::from_blob(sums, {count}, options));
    return 0;
  } catch (...) {
    optimizer.failure_ = std::current_exception();
    return 1;
  }
}

inline void Optimizer::rethrow() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// The parts that a norm is made of: by device, and by the ranks that share gradients.
inline std::vector<NormPart> Optimizer::norm_parts(const std::vector<Item>& items) {
  std::vector<NormPart> parts;
  const auto add = [&](const Tensor& param, std::uint32_t part) {
    for (const NormPart& known : parts) {
      if (known.part == part && known.device == param.device()) return;
    }
    TORCH_CHECK(part == 0 || reduce_.sum, "octavo::torch::", name_, ": other ranks have parts of gradients ",
                "(set_shard), and a norm is needed; give set_norm_reduce a function that sums over ranks");
    parts.push_back({part, param.device(), buffers_of(param.device()).norm.tensor()});
  };
  for (const Item& item : items) add(item.param, own_of(item.param).shard.part);
  for (std::uint32_t handle = 0; !own_.empty() && handle < places_.size(); ++handle) {
    const std::uint32_t part = own_of(param_of(handle)).shard.part;
    if (part != 0) add(param_of(handle), part);  // other ranks may have its gradient
  }
  if (parts.size() == 1 && parts[0].part == 0) return parts;
  for (NormPart& part : parts) part.norm = DeviceBuffers::new_norm(part.device);
  return parts;
}

// The norm of all gradients, into every device's norm.
inline void Optimizer::take_norm(const std::vector<NormPart>& parts, const octavo_engine_args& args) {
  if (parts.empty()) return;
  std::vector<Tensor> targets;
  for (const DeviceBuffers& buffers : devices_) targets.push_back(buffers.norm.tensor());
  const auto list = native_parts(parts);
  Combine combine(parts, std::move(targets), reduce_);
  const octavo_status status = octavo_engine_norm(
      engine_.get(), &args, list.data(), static_cast<std::int64_t>(list.size()), Combine::call, &combine);
  combine.rethrow();
  expect(status);
  norm_ = buffers_of(parts[0].device).norm.tensor();
}

// Autograd sees that the parameters were written.
inline void Optimizer::bump(const std::vector<Item>& items) {
  for (const Item& item : items) {
    if (!item.param.is_inference()) item.param.unsafeGetTensorImpl()->bump_version();
    records_[item.handle].version = version_of(item.param);
  }
}

// What a hook calls.
inline void Optimizer::came(const Tensor& param) {
  const std::uint32_t* const handle = find_handle(param);
  if (handle == nullptr) return;
  const ::torch::NoGradGuard no_grad;
  if (whole().gradient_release.value) return ready(*handle);
  if (!complete_ || complete_()) take(*handle);
}

// Gradient release.
inline void Optimizer::ready(std::uint32_t handle) {
  const std::size_t group = places_[handle].first;
  set_group(group, options_of(group));
  ready(item_of(handle));
}

inline void Optimizer::ready(const Item& item) {
  std::vector<Item> items{item};
  prepare(items);
  begin(items);
  Tensor& own = records_[item.handle].own;
  const ::torch::Device device = item.param.device();
  if (needs_norm() && !(own.defined() && own.device() == device)) own = DeviceBuffers::new_norm(device, 2);
  const std::uint32_t part = own_of(item.param).shard.part;
  TORCH_CHECK(part == 0 || !needs_norm() || reduce_.sum, item.where,
              "other ranks have parts of its gradient; give set_norm_reduce a function that sums over ranks");
  const Tensor mine = needs_norm() ? own.slice(0, 0, 3) : Tensor();
  Combine combine({{part, device, mine}}, {mine}, reduce_);
  // An offloaded parameter is not waited for in the backward pass.
  const Call call = call_with(needs_norm(), false, offloads());
  const octavo_status status =
      octavo_engine_ready(engine_.get(), &call.args, needs_norm() ? as_norm(own.data_ptr()) : nullptr,
                          Combine::call, &combine, nullptr);
  if (records_[item.handle].residence != kOnDevice) {
    records_[item.handle].weight = item.param.storage();
    keep(item.handle, item.grad);
  }
  item.param.mutable_grad().reset();
  combine.rethrow();
  rethrow();
  expect(status);
  bump(items);
}

// Ends a step of gradient release; its norm clips the next one.
inline void Optimizer::finish() {
  std::vector<NormPart> parts;
  std::vector<Tensor> totals;
  for (DeviceBuffers& buffers : devices_) {
    if (!needs_norm()) break;
    totals.push_back(buffers.total.tensor());
    parts.push_back({0, buffers.device, totals.back()});
  }
  make_room();
  const Call call = call_with(needs_norm(), whole().guard.value, attached_);
  const auto list = native_parts(parts);
  Combine combine(parts, totals, reduce_);
  const octavo_status status =
      octavo_engine_finish(engine_.get(), &call.args, list.data(), static_cast<std::int64_t>(list.size()),
                           Combine::call, &combine);
  combine.rethrow();
  expect(status);
  norm_ = totals.empty() ? Tensor() : totals[0];
  if (attached_) {
    used_scalars_ = std::exchange(scalars_, {});
  } else if (offloads()) {
    wait();
  }
}

inline void ReleaseHooks::watch() {
  std::size_t mine = 0;
  for (const auto& group : link_->owner->param_groups()) {
    for (const ::torch::Tensor& param : group.params()) {
      const bool hooked = param.defined() && is_mine(param);
      if (hooked) ++mine;
      if (hooked || !param.requires_grad() || !param.is_leaf()) continue;
      TORCH_CHECK(::torch::autograd::impl::post_acc_grad_hooks(param) == nullptr,
                  "octavo::torch: gradient_release and offload_gradients: a parameter has a "
                  "post-accumulate-grad hook already, of another optimizer for example; remove it first");
      ::torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<Hook>(link_));
      hooked_.push_back(param);
      ++mine;
    }
  }
  if (mine < hooked_.size()) release_gone();
}

inline void ReleaseHooks::release_gone() {
  std::unordered_set<const void*> current;
  for (const auto& group : link_->owner->param_groups()) {
    for (const ::torch::Tensor& param : group.params()) current.insert(param.unsafeGetTensorImpl());
  }
  const auto gone = std::partition(hooked_.begin(), hooked_.end(), [&](const ::torch::Tensor& param) {
    return current.count(param.unsafeGetTensorImpl()) != 0;
  });
  for (auto param = gone; param != hooked_.end(); ++param) {
    if (is_mine(*param)) ::torch::autograd::impl::set_post_acc_grad_hooks(*param, nullptr);
  }
  hooked_.erase(gone, hooked_.end());
}

inline void ReleaseHooks::Hook::operator()(const ::torch::Tensor& param) {
  const std::lock_guard<std::recursive_mutex> lock(link->mutex);
  if (link->owner != nullptr) link->owner->came(param);
}

}  // namespace octavo::torch
