// step() of octavo::torch::Optimizer with everything that it calls, in the order of the calls: collect the
// gradients, register what has changed, begin, norm, step. Nothing is written before all parameters were
// checked and registered. Gradient release does the same for one parameter at a time.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/checkpoint.h>
#include <octavo/torch/offload.h>
#include <torch/utils.h>

#include <optional>
#include <typeinfo>
#include <unordered_set>

namespace octavo::torch {

inline ::torch::Tensor Optimizer::step(LossClosure closure) {
  Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  const ::torch::NoGradGuard no_grad;
  if (attached_) wait(), used_scalar_copies_.clear();
  std::vector<StepTensor> tensors = collect_gradients();
  if (settings().gradient_release.value) {
    const std::lock_guard<std::recursive_mutex> lock(hooks_->mutex());
    for (const StepTensor& tensor : tensors) step_one(tensor);
    finish_release();
    return loss;
  }
  register_changed(tensors);
  send_update_order();
  begin(tensors);
  const std::vector<NormPart> parts = needs_norm() ? norm_parts(tensors) : std::vector<NormPart>();
  const Call call = fill_args(!parts.empty(), settings().skip_nonfinite.value, attached_);
  norm_ = Tensor();
  if (!parts.empty()) compute_norm(parts, call.args);
  call_engine([&](Engine& engine) { engine.step(call.args); });
  increment_versions(tensors);
  retain_for_step(tensors);
  return loss;
}

// Returns the parameters that have gradients, and checks them.
inline std::vector<StepTensor> Optimizer::collect_gradients() {
  own_defaults().check();
  complete_groups();
  for (std::size_t g = 0; g < param_groups_.size(); ++g) send_options(g, options_of(g));
  std::vector<StepTensor> tensors;
  for (std::uint32_t handle = 0; handle < members_.size(); ++handle) {
    const bool on_host = has_host_grad(handle), here = param_of(handle).grad().defined();
    if (on_host && here) offload_gradient(handle);  // the parameter got another gradient since
    if (on_host || here) tensors.push_back(make_step_tensor(handle));
  }
  return tensors;
}

// Makes groups inherit and checks them if they are new. This runs at every step, because groups may also be
// added by torch's add_param_group(), which is not virtual.
inline void Optimizer::complete_groups() {
  bool complete = true;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    auto* options = dynamic_cast<Options*>(&param_groups_[g].options());
    TORCH_CHECK(
        options != nullptr && typeid(*options) == typeid(*defaults_) && &options->algorithm() == algorithm_,
        "octavo::torch::", name_, ": group ", g,
        " has options of another class, expected octavo::torch::", name_, "Options");
    if (options->complete()) continue;
    Settings::each([&](const char* option, auto field, Scope scope) {
      const auto& own = options->settings().*field;
      TORCH_CHECK(scope == Scope::kPerGroup || !own.given || own.value == (settings().*field).value,
                  "octavo::torch::", name_, ": group ", g, ": ", option,
                  " is of the whole optimizer; set it on the optimizer's options");
    });
    const std::unique_ptr<::torch::optim::OptimizerOptions> merged = options->clone();
    static_cast<Options&>(*merged).inherit(own_defaults());
    static_cast<Options&>(*merged).check();
    options->inherit(own_defaults());
    complete = false;
  }
  update_members();
  if (complete) return;
  std::unordered_set<const void*> seen;
  for (std::uint32_t handle = 0; handle < members_.size(); ++handle) {
    const Tensor& param = param_of(handle);
    check_param(param, name_of(handle));
    TORCH_CHECK(seen.insert(param.unsafeGetTensorImpl()).second, name_of(handle),
                "it is there twice, and one step would write it twice");
    store_of(param, options_of(members_[handle]).settings().master.value, name_of(handle));
  }
  for (std::size_t g = 0; g < param_groups_.size(); ++g) send_options(g, options_of(g));
}

// Numbers the parameters. Removes those from the engine that left the groups or have moved, because their
// memory may belong to other tensors now.
inline void Optimizer::update_members() {
  std::vector<std::uint32_t> outdated;
  std::uint32_t count = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& params = param_groups_[g].params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const std::uint32_t handle = count++;
      if (handle == members_.size()) members_.emplace_back();
      Member& member = members_[handle];
      member.group = g, member.index = i;
      if (!params[i].defined()) continue;
      const bool same = member.impl == params[i].unsafeGetTensorImpl();
      const bool moved = member.registered && member.description.param != params[i].data_ptr();
      // The step registers a moved parameter again if it has a gradient.
      if (same && (!moved || params[i].grad().defined() || has_host_grad(handle))) continue;
      if (member.registered) outdated.push_back(handle);
      if (!same) {
        if (member.host.data != nullptr) synchronize();  // steps under way write there
        member.host = HostMemory(), residences_chosen_ = false;
      }
      // Another parameter may get the address of the previous one.
      if (const auto previous = handles_.find(member.impl);
          previous != handles_.end() && previous->second == handle)
        handles_.erase(previous);
      member.impl = params[i].unsafeGetTensorImpl();
      handles_[member.impl] = handle;
    }
  }
  for (std::uint32_t handle = count; handle < members_.size(); ++handle) {
    if (members_[handle].registered) outdated.push_back(handle);
  }
  remove_from_engine(outdated);
  members_.resize(count);
  if (hooks_) hooks_->update(param_groups_);
}

inline void Optimizer::remove_from_engine(const std::vector<std::uint32_t>& handles) {
  if (handles.empty()) return;
  synchronize();
  retained_.clear(), retained_bytes_ = 0;
  call_engine([&](Engine& engine) { engine.remove(handles); });
  for (const std::uint32_t handle : handles) members_[handle].registered = false;
}

// Gives the engine the options of a group. A group that does not exist can be sent to check its options.
inline void Optimizer::send_options(std::size_t group, const Options& options) {
  options.check();
  octavo_step_args args = options.step_args();
  args.clip_grad_norm = settings().clip_grad_norm.value;
  ::torch::Device device(::torch::kCPU);
  if (group < rates_.size() && rates_[group].defined()) {
    args.scalar_lr = copy_if_deferred(rates_[group]).data_ptr<float>();
    device = rates_[group].device();
  }
  call_engine([&](Engine& engine) {
    engine.set_group(static_cast<std::uint32_t>(group), options.switches(), args, native::device_kind(device),
                     native::device_index(device));
  });
}

inline StepTensor Optimizer::make_step_tensor(std::uint32_t handle) const {
  const Tensor& param = param_of(handle);
  check_param(param, name_of(handle));
  StepTensor tensor{handle, param, Tensor(), find_state(param)};
  if (!param.grad().defined()) return tensor;
  check_grad(param, param.grad(), name_of(handle));
  tensor.grad = in_memory_order(param.grad(), param);
  return tensor;
}

// Makes and moves states if that is needed, and registers the parameters that are not registered as they are.
inline void Optimizer::register_changed(std::vector<StepTensor>& tensors) {
  choose_residences();
  std::vector<StepTensor*> changed;
  for (StepTensor& tensor : tensors) {
    const Member& member = members_[tensor.handle];
    if (tensor.state != nullptr && member.registered && member.switches == options_of(member).switches()) {
      const octavo_engine_tensor now = describe_tensor(tensor);
      if (std::memcmp(&member.description, &now, sizeof now) == 0) continue;
    }
    changed.push_back(&tensor);
  }
  std::optional<::torch::Device> checked;
  for (const StepTensor& tensor : tensors) {
    if (checked == tensor.param.device()) continue;
    checked = tensor.param.device();
    if (!native::capturing(native::current_stream(*checked))) continue;
    TORCH_CHECK(settings().capturable.value, name_of(tensor.handle),
                "a CUDA graph is being captured, which needs capturable(true) on the optimizer's options");
    TORCH_CHECK(changed.empty(), name_of(changed[0]->handle),
                "a CUDA graph is being captured, and its state is new or has changed; take a step before");
  }
  if (!changed.empty()) register_tensors(changed);
  update_host_copies(tensors);
}

// Returns the parameter and its complete state for the engine.
inline octavo_engine_tensor Optimizer::describe_tensor(const StepTensor& tensor) const {
  const auto address = [](const Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; };
  const Member& member = members_[tensor.handle];
  const ParamState& state = *tensor.state;
  const ::torch::Device device = tensor.param.device();
  const octavo_tensor_spec spec = spec_of(tensor.param, options_of(member), name_of(tensor.handle));
  const Shard& shard = overrides_of(tensor.param).shard;
  octavo_engine_tensor out = octavo::make<octavo_engine_tensor>();
  out.group = static_cast<std::uint32_t>(member.group);
  out.param_dtype = spec.param_dtype, out.store = spec.store;
  if (state.format == member.format) {
    out.format = member.description.format;  // the core's lookup by name takes longer
  } else if (!state.format.empty()) {
    out.format = native::parse("state", state.format);
  }
  out.block_size = state.block_size;
  out.ndim = spec.ndim, out.numel = spec.numel;
  std::memcpy(out.shape, spec.shape, sizeof out.shape);
  out.param_device_kind = out.state_device_kind = native::device_kind(device);
  out.param_device_index = out.state_device_index = native::device_index(device);
  if (member.residence != kOnDevice) out.state_device_kind = out.state_device_index = 0;
  out.residence = member.residence, out.held_in_fp32 = settings().accumulate_in_fp32.value ? 1 : 0;
  out.step_on_device = counts_on_device() && member.residence != kOnHost && !device.is_cpu() ? 1 : 0;
  out.whole_numel = shard.whole_numel, out.offset = shard.offset, out.norm_part = shard.part;
  out.id = tensor.handle;
  out.param = tensor.param.data_ptr();
  out.residual = address(state.master);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    out.codes[slot] = address(state.codes[slot]);
    out.scales[slot] = static_cast<float*>(address(state.scales[slot]));
  }
  out.step = static_cast<std::int64_t*>(address(state.count));
  out.known_steps = -2;  // the value of the count is as the engine knows it
  return out;
}

// Completes the states of these parameters and gives all of them to the engine. A state whose step count the
// engine does not have (a new or loaded state, or a count that moves) gets a new count; if the old count is
// on a device, this waits for the device.
inline void Optimizer::register_tensors(const std::vector<StepTensor*>& changed) {
  synchronize();
  std::vector<Kind> kinds;
  for (const StepTensor* tensor : changed) {
    kinds.push_back(kind_of(tensor->handle, tensor->state));
    if (tensor->state != nullptr) check_state(*tensor->state, kinds.back(), name_of(tensor->handle));
  }
  std::vector<std::uint32_t> handles;
  std::vector<octavo_engine_tensor> described;
  for (std::size_t i = 0; i < changed.size(); ++i) {
    StepTensor& tensor = *changed[i];
    const Member& member = members_[tensor.handle];
    if (tensor.state == nullptr) {
      auto made = std::make_unique<ParamState>();
      tensor.state = made.get();
      state_[tensor.param.unsafeGetTensorImpl()] = std::move(made);
    }
    const bool offloaded = member.residence != kOnDevice;
    if (offloaded && member.host.bytes != host_bytes(kinds[i]))
      reserve_host_memory({{tensor.handle, kinds[i]}});  // its kind has changed
    complete_state(*tensor.state, tensor.param, kinds[i], offloaded ? member.host : HostMemory(),
                   algorithm_->info.first_step_fills != 0);
    const bool on_device = counts_on_device() && member.residence != kOnHost;
    const ::torch::Device device = on_device ? tensor.param.device() : ::torch::Device(::torch::kCPU);
    Tensor& count = tensor.state->count;
    std::int64_t known_steps = -2;  // as the engine knows it
    if (!member.registered || !count.defined() || count.data_ptr() != member.description.step ||
        count.device() != device) {
      known_steps = tensor.state->step();
      count = ::torch::full({}, known_steps, ::torch::TensorOptions().dtype(::torch::kInt64).device(device));
    }
    handles.push_back(tensor.handle);
    described.push_back(describe_tensor(tensor));
    described.back().known_steps = known_steps;
  }
  call_engine([&](Engine& engine) { engine.set(handles, described); });
  for (std::size_t i = 0; i < changed.size(); ++i) {
    Member& member = members_[handles[i]];
    member.registered = true;
    member.description = described[i];
    member.description.known_steps = -2;
    member.switches = options_of(member).switches();
    member.format = changed[i]->state->format;
    member.count = changed[i]->state->count;
    member.version = version_of(changed[i]->param) - 1;  // update_host_copies() copies the parameter
  }
}

// Gives the engine the gradients, and allocates the memory that the step needs.
inline void Optimizer::begin(const std::vector<StepTensor>& tensors) {
  std::vector<std::uint32_t> handles;
  std::vector<const void*> grads;
  std::vector<std::uint8_t> dtypes;
  for (const StepTensor& tensor : tensors) {
    const bool here = tensor.grad.defined();
    handles.push_back(tensor.handle);
    grads.push_back(here ? tensor.grad.data_ptr() : nullptr);
    dtypes.push_back(static_cast<std::uint8_t>(here ? native::dtype_number(tensor.grad.scalar_type()) : 0));
    buffer_of(tensor.param.device());
  }
  std::uint64_t plan = 0;
  call_engine([&](Engine& engine) { plan = engine.begin(handles, grads, dtypes, needs_norm()).number; });
  if (plan != plan_ || offloads()) grow_buffers();
  plan_ = plan;
}

// Allocates larger workspaces and staging memory if the engine needs them.
inline void Optimizer::grow_buffers() {
  const auto grow = [&](Engine& engine, DeviceBuffer& buffer) {
    const std::uint32_t kind = native::device_kind(buffer.device);
    const std::int32_t index = native::device_index(buffer.device);
    const std::int64_t staging = engine.staging_bytes(kind, index);
    if (staging > buffer.staging_bytes()) {
      synchronize();
      buffer.staging = {native::bytes(staging + kStagingAlignment, buffer.device), buffer.device};
    }
    const std::int64_t workspace = engine.workspace_bytes(kind, index);
    if (workspace <= buffer.workspace_bytes()) return;
    if (settings().capturable.value) kept_.push_back(buffer.workspace.tensor());
    buffer.workspace = {native::bytes(workspace, buffer.device), buffer.device};
  };
  for (DeviceBuffer& buffer : devices_) call_engine([&](Engine& engine) { grow(engine, buffer); });
}

// Returns the parts that the norm consists of: one for each device, and for each set of ranks that share
// gradients.
inline std::vector<NormPart> Optimizer::norm_parts(const std::vector<StepTensor>& tensors) {
  std::vector<NormPart> parts;
  const auto add = [&](const Tensor& param, std::uint32_t part) {
    for (const NormPart& known : parts) {
      if (known.part == part && known.device == param.device()) return;
    }
    TORCH_CHECK(part == 0 || reduce_.sum, "octavo::torch::", name_, ": other ranks have parts of gradients ",
                "(set_shard), and a norm is needed; give set_norm_reduce a function that sums over ranks");
    parts.push_back({part, param.device(), buffer_of(param.device()).norm.tensor()});
  };
  for (const StepTensor& tensor : tensors) add(tensor.param, part_of(tensor.param));
  for (std::uint32_t handle = 0; !overrides_.empty() && handle < members_.size(); ++handle) {
    const std::uint32_t part = part_of(param_of(handle));
    if (part != 0) add(param_of(handle), part);  // other ranks may have its gradient
  }
  if (parts.size() == 1 && parts[0].part == 0) return parts;
  for (NormPart& part : parts) part.norm = new_norm(part.device);
  return parts;
}

// Returns the arguments of a call of the engine: every device with its current stream.
inline Optimizer::Call Optimizer::fill_args(bool norm, bool report, bool defer) {
  Call call;
  for (DeviceBuffer& buffer : devices_) {
    const native::MaybeStream stream = native::current_stream(buffer.device);
    octavo_engine_device& device = call.devices.emplace_back(octavo::make<octavo_engine_device>());
    device.device_kind = native::device_kind(buffer.device);
    device.device_index = native::device_index(buffer.device);
    device.stream = native::handle_of(stream);
    device.workspace = buffer.workspace.on(stream);
    device.workspace_bytes = buffer.workspace_bytes();
    if (buffer.staging_bytes() > 0) {
      device.staging = native::aligned(buffer.staging.on(stream), kStagingAlignment);
      device.staging_bytes = buffer.staging_bytes();
    }
    if (loss_scale_.defined()) device.loss_scale = copy_if_deferred(loss_scale_).data_ptr<float>();
    if (found_inf_.defined()) device.found_inf = copy_if_deferred(found_inf_).data_ptr<float>();
    if (norm) device.norm = as_norm(buffer.norm.on(stream));
    if (report) device.report = static_cast<octavo_device_report*>(buffer.report.on(stream));
  }
  call.args.skip_nonfinite = settings().skip_nonfinite.value ? 1 : 0;
  call.args.defer = defer ? 1 : 0;
  call.args.threads = at::get_num_threads();
  call.args.devices = call.devices.data();
  call.args.device_count = static_cast<std::int64_t>(call.devices.size());
  if (reduce_.sum) call.args.add_sums = add_sums, call.args.sums_user = this;
  return call;
}

// The engine calls this if an algorithm measures tensors that ranks share.
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

// Writes the norm of all gradients to every device.
inline void Optimizer::compute_norm(const std::vector<NormPart>& parts, const octavo_engine_args& args) {
  std::vector<Tensor> targets;
  for (const DeviceBuffer& buffer : devices_) targets.push_back(buffer.norm.tensor());
  call_engine([&](Engine& engine) {
    engine.norm(args, native_parts(parts), [&] { combine_norms(parts, targets, reduce_); });
  });
  norm_ = buffer_of(parts[0].device).norm.tensor();
}

// Makes autograd see that the parameters were written.
inline void Optimizer::increment_versions(const std::vector<StepTensor>& tensors) {
  for (const StepTensor& tensor : tensors) {
    if (!tensor.param.is_inference()) tensor.param.unsafeGetTensorImpl()->bump_version();
    members_[tensor.handle].version = version_of(tensor.param);
  }
}

// --- Gradient release ---

// Makes the hooks call this object when the gradient of a parameter is complete.
inline void Optimizer::connect_hooks() {
  if (hooks_ == nullptr) return;
  hooks_->set_call([this](const Tensor& param) {
    const std::uint32_t* const handle = find_handle(param);
    if (handle == nullptr) return;
    const ::torch::NoGradGuard no_grad;
    if (settings().gradient_release.value) {
      send_options(members_[*handle].group, options_of(members_[*handle]));
      step_one(make_step_tensor(*handle));
    } else if (!gradient_filter_ || gradient_filter_()) {
      offload_gradient(*handle);
    }
  });
}

// Steps a parameter before the other gradients are complete, and frees its gradient.
inline void Optimizer::step_one(const StepTensor& tensor) {
  std::vector<StepTensor> tensors{tensor};
  register_changed(tensors);
  begin(tensors);
  Member& member = members_[tensor.handle];
  const ::torch::Device device = tensor.param.device();
  if (needs_norm() && !(member.release_norms.defined() && member.release_norms.device() == device))
    member.release_norms = new_norm(device, 2);
  const std::uint32_t part = part_of(tensor.param);
  TORCH_CHECK(part == 0 || !needs_norm() || reduce_.sum, name_of(tensor.handle),
              "other ranks have parts of its gradient; give set_norm_reduce a function that sums over ranks");
  const Tensor own = needs_norm() ? member.release_norms.slice(0, 0, 3) : Tensor();
  // The backward pass does not wait for an offloaded parameter.
  const Call call = fill_args(needs_norm(), false, offloads());
  std::exception_ptr failure;
  try {
    call_engine([&](Engine& engine) {
      engine.ready(call.args, needs_norm() ? as_norm(own.data_ptr()) : nullptr, [&] {
        combine_norms({{part, device, own}}, {own}, reduce_);
      });
    });
  } catch (...) {
    failure = std::current_exception();
  }
  if (member.residence != kOnDevice) {
    member.weight = tensor.param.storage();
    retain_grad(tensor);
    limit_retained_grads();
  }
  tensor.param.mutable_grad().reset();
  if (failure) std::rethrow_exception(failure);
  increment_versions(tensors);
}

// Ends a step of gradient release. Its norm clips the next step.
inline void Optimizer::finish_release() {
  std::vector<NormPart> parts;
  std::vector<Tensor> totals;
  for (const DeviceBuffer& buffer : devices_) {
    if (!needs_norm()) break;
    totals.push_back(buffer.total.tensor());
    parts.push_back({0, buffer.device, totals.back()});
  }
  grow_buffers();
  const Call call = fill_args(needs_norm(), settings().skip_nonfinite.value, attached_);
  call_engine([&](Engine& engine) {
    engine.finish(call.args, native_parts(parts), [&] { combine_norms(parts, totals, reduce_); });
  });
  norm_ = totals.empty() ? Tensor() : totals[0];
  if (attached_) {
    used_scalar_copies_ = std::exchange(scalar_copies_, {});
  } else if (offloads()) {
    wait();
  }
}

// --- Groups, and settings of one parameter ---

inline Optimizer::Optimizer(const std::vector<ParamGroup>& groups, std::unique_ptr<Options> defaults)
    : ::torch::optim::Optimizer(std::vector<ParamGroup>{}, std::move(defaults)),
      OptimizerMembers(own_defaults().algorithm()) {
  own_defaults().check();
  send_options(0, own_defaults());  // only to check the numbers
  if (settings().gradient_release.value || settings().offload_gradients.value)
    hooks_ = std::make_unique<GradientHooks>();
  connect_hooks();
  for (const ParamGroup& group : groups) add_param_group(group);
}

inline void Optimizer::add_param_group(const ParamGroup& group) {
  ::torch::optim::Optimizer::add_param_group(group);
  // torch may have merged the options with the defaults. Use those that the caller gave.
  if (group.has_options()) param_groups_.back().set_options(group.options().clone());
  try {
    complete_groups();
  } catch (...) {
    param_groups_.pop_back();
    update_members();
    throw;
  }
}

inline const std::uint32_t* Optimizer::find_handle(const Tensor& param) const {
  const auto found = handles_.find(param.unsafeGetTensorImpl());
  const bool mine = found != handles_.end() && found->second < members_.size() &&
                    members_[found->second].impl == param.unsafeGetTensorImpl();
  return mine ? &found->second : nullptr;
}

inline std::uint32_t Optimizer::handle_of(const Tensor& param, const char* caller) const {
  const std::uint32_t* const handle = find_handle(param);
  TORCH_CHECK(handle != nullptr, "octavo::torch::", name_, ": ", caller,
              ": the parameter is not of this optimizer");
  return *handle;
}

inline void Optimizer::set_overrides(const Tensor& param, std::uint32_t handle, const Overrides& overrides) {
  TORCH_CHECK(find_state(param) == nullptr, name_of(handle), "it has ", find_state(param)->format,
              " states already; set its shard and format before its first step");
  octavo::torch::kind_of(param, options_of(members_[handle]), overrides, nullptr,
                         name_of(handle));  // a check
  for (auto each = overrides_.begin(); each != overrides_.end();)
    each = each->second.param.expired() ? overrides_.erase(each) : std::next(each);
  overrides_.insert_or_assign(
      param.unsafeGetTensorImpl(),
      OwnedOverrides{decltype(OwnedOverrides::param)(param.getIntrusivePtr()), overrides});
  residences_chosen_ = false;
}

inline void Optimizer::set_shard(const Tensor& param, const Shard& shard) {
  const std::uint32_t handle = handle_of(param, "set_shard");
  const std::int64_t whole = shard.whole_numel == 0 ? param.numel() : shard.whole_numel;
  TORCH_CHECK(shard.offset >= 0 && shard.offset + param.numel() <= whole, name_of(handle),
              "set_shard: got offset ", shard.offset, " and whole_numel ", shard.whole_numel,
              ", expected a whole of at least the offset and this part's ", param.numel(), " elements");
  const std::uint32_t switches = options_of(members_[handle]).switches();
  TORCH_CHECK(shard.part != 0 || octavo_algorithm_passes(algorithm_->index, switches) == 1, name_of(handle),
              "set_shard: got part 0, expected the number of a part, because ", algorithm_->info.name,
              " measures whole tensors, over all ranks");
  Overrides overrides = overrides_of(param);
  overrides.shard = shard;
  set_overrides(param, handle, overrides);
}

inline void Optimizer::set_format(const Tensor& param, const std::string& format, std::int64_t block_size) {
  Overrides overrides = overrides_of(param);
  overrides.format = format, overrides.block_size = block_size;
  set_overrides(param, handle_of(param, "set_format"), overrides);
}

inline ::torch::Tensor Optimizer::checked_scalar(const char* what, Tensor scalar) const {
  if (!scalar.defined()) return scalar;
  TORCH_CHECK(scalar.scalar_type() == ::torch::kFloat32 && scalar.numel() == 1, "octavo::torch::", name_,
              ": ", what, ": got ", scalar.numel(), " of ", c10::toString(scalar.scalar_type()),
              ", expected one Float");
  for (const auto& group : param_groups_) {
    for (const Tensor& param : group.params()) {
      TORCH_CHECK(param.device() == scalar.device(), "octavo::torch::", name_, ": ", what, " is on ",
                  scalar.device(), ", expected ", param.device(), ", where the parameters are");
    }
  }
  return scalar;
}

inline void Optimizer::set_lr(std::size_t group, Tensor rate) {
  TORCH_CHECK(group < param_groups_.size(), "octavo::torch::", name_, ": set_lr: got group ", group,
              ", expected one of ", param_groups_.size());
  rates_.resize(std::max(rates_.size(), group + 1));
  rates_[group] = checked_scalar("lr", std::move(rate));
}

// --- Reports ---

inline ::torch::Tensor Optimizer::skipped() const {
  if (!settings().skip_nonfinite.value || devices_.empty()) return {};
  // The norm over all devices decides, so every device's report is equal.
  static_assert(offsetof(octavo_device_report, skipped) == 0);
  return devices_.front().report.tensor().view(::torch::kUInt8)[0];
}

inline bool Optimizer::last_step_skipped() const {
  if (!settings().skip_nonfinite.value) return false;
  for (const DeviceBuffer& buffer : devices_) {
    const Tensor report = buffer.report.tensor().cpu();
    if (static_cast<const octavo_device_report*>(report.data_ptr())->skipped != 0) return true;
  }
  return false;
}

inline std::int64_t Optimizer::workspace_bytes() const {
  std::int64_t total = 0;
  for (const DeviceBuffer& buffer : devices_) total += buffer.workspace_bytes() + buffer.staging_bytes();
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
