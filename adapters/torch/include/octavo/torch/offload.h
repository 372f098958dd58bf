// The functions of octavo::torch::Optimizer for states and gradients in host memory: which states are
// offloaded, gradients that move to host memory or are read later, and what waits for what. step() calls
// them; without offload they do nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

#include <algorithm>

namespace octavo::torch {

// The most bytes of gradients, approximately, that are kept only because the engine still reads them.
constexpr std::int64_t kMostRetainedBytes = std::int64_t{160} << 20;

// --- Where states are ---

// Chooses the residence of all states, by the rule that all adapters share, and allocates their host memory.
inline void Optimizer::choose_residences() {
  if (residences_chosen_) return;
  const std::string& offload = settings().offload.value;
  std::vector<std::pair<std::uint32_t, Kind>> candidates, moving;
  std::vector<octavo_residence_tensor> sizes;
  for (std::uint32_t handle = 0; handle < members_.size(); ++handle) {
    members_[handle].residence = kOnDevice;
    const Tensor& param = param_of(handle);
    if (!offloads() || (offload == "auto" && param.is_cpu())) continue;
    candidates.emplace_back(handle, kind_of(handle, find_state(param)));
    sizes.push_back({param.numel(), octavo::torch::state_bytes(candidates.back().second)});
  }
  std::vector<std::uint32_t> chosen(candidates.size());
  native::check(octavo_choose_residences(sizes.data(), static_cast<std::int64_t>(sizes.size()),
                                         offload == "host" ? kOnHost : kStreamed,
                                         settings().min_offload_size.value, settings().offload_ratio.value,
                                         settings().gpu_state_budget.value, chosen.data()),
                std::string("octavo::torch::") + name_ + ": ");
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto& [handle, kind] = candidates[i];
    Member& member = members_[handle];
    member.residence = chosen[i];
    const bool trained = param_of(handle).requires_grad() || param_of(handle).grad().defined();
    if (chosen[i] != kOnDevice && trained && member.host.bytes != host_bytes(kind))
      moving.push_back(candidates[i]);
  }
  if (!moving.empty()) reserve_host_memory(moving);
  residences_chosen_ = true;
}

// Allocates one block for these states, in their order, so that the engine can copy several at once.
inline void Optimizer::reserve_host_memory(const std::vector<std::pair<std::uint32_t, Kind>>& moving) {
  check_host_memory(moving);
  std::int64_t total = 0, offset = 0;
  bool pin = false;
  for (const auto& [handle, kind] : moving) {
    total += host_bytes(kind);
    pin = pin || !param_of(handle).is_cpu();
  }
  const std::shared_ptr<std::byte> block = allocate_host_memory(total, pin);
  for (const auto& [handle, kind] : moving) {
    HostMemory& host = members_[handle].host;
    host = {std::shared_ptr<std::byte>(block, block.get() + offset), host_bytes(kind)};
    offset += host.bytes;
  }
}

// Throws if host memory cannot hold these states and the engine's copies of their weights and gradients.
inline void Optimizer::check_host_memory(const std::vector<std::pair<std::uint32_t, Kind>>& moving) const {
  std::int64_t states = 0, copies = 0;
  for (const auto& [handle, kind] : moving) {
    const Tensor& param = param_of(handle);
    const bool on_host = members_[handle].residence == kOnHost;
    states += host_bytes(kind);
    if (on_host) copies += static_cast<std::int64_t>(param.nbytes());
    if (on_host || settings().offload_gradients.value)
      copies += param.numel() * (settings().accumulate_in_fp32.value ? 4 : param.element_size());
  }
  const std::int64_t available = octavo_host_room();
  if (states + copies <= available) return;
  std::string advice;
  for (std::int32_t f = 0; f < octavo_format_count() && advice.empty(); ++f) {
    octavo_format_info info = octavo::make<octavo_format_info>();
    native::check(octavo_format(f, &info), "octavo: ");
    std::int64_t needed = copies;
    for (auto [handle, kind] : moving) {
      kind.spec.format = info.number, kind.spec.block_size = 0;
      kind.layout = layout_of(kind, kind.spec, "octavo: ");
      needed += host_bytes(kind);
    }
    if (needed <= available)
      advice = std::string("state(\"") + info.name + "\") needs " + std::to_string(needed) + ", or ";
  }
  TORCH_CHECK(false, "octavo::torch::", name_, ": offload: ", states + copies,
              " bytes of host memory are needed (", states, " of states, ", copies,
              " of copies of weights and gradients), and ", available, " are free; ", advice,
              "lower offload_ratio or set gpu_state_budget, so that more states stay on the device");
}

inline const char* Optimizer::residence_of(const Tensor& param) {
  if (!residences_chosen_) complete_groups(), choose_residences();
  const std::uint32_t residence = members_[handle_of(param, "residence_of")].residence;
  return residence == kOnHost ? "host" : residence == kStreamed ? "stream" : "device";
}

inline std::int64_t Optimizer::host_state_bytes() const {
  std::int64_t total = 0;
  for (std::uint32_t handle = 0; handle < members_.size(); ++handle) {
    const ParamState* const state = find_state(param_of(handle));
    if (state != nullptr && members_[handle].residence != kOnDevice) total += state->bytes();
  }
  return total;
}

// --- Waiting ---

// Calls Engine::wait, or Engine::refresh, on each device that has some of these parameters; without handles,
// on every device and for all of its parameters.
template <class What>
void Optimizer::call_on_devices(DeviceCall<What> call, const std::vector<std::uint32_t>& handles, What what) {
  for (const DeviceBuffer& buffer : devices_) {
    std::vector<std::uint32_t> here;
    for (const std::uint32_t handle : handles) {
      if (param_of(handle).device() == buffer.device) here.push_back(handle);
    }
    if (here.empty() && !handles.empty()) continue;
    call_engine([&](Engine& engine) {
      (engine.*call)(here, what, native::device_kind(buffer.device), native::device_index(buffer.device),
                     native::handle_of(native::current_stream(buffer.device)));
    });
  }
}

inline void Optimizer::wait() {
  if (!offloads()) return;
  call_on_devices(&Engine::wait, {}, Engine::Wait::weights);
  release_grads({});
  for (Member& member : members_) member.weight = {};
}

inline void Optimizer::wait(const std::vector<Tensor>& params) {
  if (!offloads()) return;
  std::vector<std::uint32_t> handles, stepped;
  for (const Tensor& param : params) {
    const std::uint32_t* const handle = find_handle(param);
    if (handle == nullptr || !members_[*handle].registered || members_[*handle].residence == kOnDevice)
      continue;
    handles.push_back(*handle);
  }
  if (handles.empty()) return;
  call_on_devices(&Engine::wait, handles, Engine::Wait::weights);
  // A gradient for the next step may still be moving to host memory. A forward pass between two backward
  // passes does not wait for it.
  for (const std::uint32_t handle : handles) {
    Member& member = members_[handle];
    member.weight = {};
    if (!has_host_grad(handle)) stepped.push_back(handle);
    if (attached_ && !std::exchange(member.waited, true)) waited_order_.push_back(handle);
  }
  if (!stepped.empty()) release_grads(stepped);
}

inline void Optimizer::synchronize() const {
  if (offloads() && engine_.get() != nullptr) call_engine([](Engine& engine) { engine.synchronize(); });
}

// Makes the next updates run in the order in which wait() was called for their parameters.
inline void Optimizer::send_update_order() {
  if (!attached_) return;
  std::vector<std::uint32_t> order;
  for (const std::uint32_t handle : std::exchange(waited_order_, {})) {
    if (handle >= members_.size()) continue;
    members_[handle].waited = false;
    if (members_[handle].registered) order.push_back(handle);
  }
  if (order.empty() || order == update_order_) return;
  call_engine([&](Engine& engine) { engine.set_order(order); });
  update_order_ = std::move(order);
}

// --- Copies of parameters and scalars ---

// Renews the copies that the host updates of parameters that were written since the last step.
inline void Optimizer::update_host_copies(const std::vector<StepTensor>& tensors) {
  if (!offloads()) return;
  std::vector<std::uint32_t> written;
  for (const StepTensor& tensor : tensors) {
    buffer_of(tensor.param.device());
    Member& member = members_[tensor.handle];
    if (member.residence != kOnHost || member.version == version_of(tensor.param)) continue;
    member.version = version_of(tensor.param);
    written.push_back(tensor.handle);
  }
  if (!written.empty()) call_on_devices(&Engine::refresh, written, Engine::Copy::to_host);
}

inline void Optimizer::sync_params(const std::string& direction) {
  TORCH_CHECK(direction == "to_host" || direction == "to_device", "octavo::torch::", name_,
              ": sync_params: got '", direction, "', expected \"to_host\" or \"to_device\"");
  const ::torch::NoGradGuard no_grad;
  const bool to_host = direction == "to_host";
  std::vector<std::uint32_t> copied;
  for (std::uint32_t handle = 0; handle < members_.size(); ++handle) {
    if (members_[handle].registered && members_[handle].residence == kOnHost) copied.push_back(handle);
  }
  if (copied.empty()) return;
  call_on_devices(&Engine::refresh, copied, to_host ? Engine::Copy::to_host : Engine::Copy::to_device);
  for (const std::uint32_t handle : copied) {
    const Tensor& param = param_of(handle);
    if (!to_host && !param.is_inference()) param.unsafeGetTensorImpl()->bump_version();
    members_[handle].version = version_of(param);
  }
}

// Returns a copy of a scalar that a deferred step reads later, because its owner may change it until then;
// else the scalar.
inline ::torch::Tensor Optimizer::copy_if_deferred(const Tensor& scalar) {
  if (!attached_ || !offloads()) return scalar;
  for (const auto& [given, copy] : scalar_copies_) {
    if (given.is_same(scalar)) return copy;
  }
  scalar_copies_.emplace_back(scalar, scalar.clone());
  return scalar_copies_.back().second;
}

// --- Gradients ---

inline void Optimizer::offload_gradient(const Tensor& param) {
  const ::torch::NoGradGuard no_grad;
  offload_gradient(handle_of(param, "offload_gradient"));
}

inline void Optimizer::offload_gradient(std::uint32_t handle) {
  choose_residences();
  const Tensor& param = param_of(handle);
  if (members_[handle].residence == kOnDevice || !param.grad().defined()) return;
  const ::torch::Device device = param.device();
  buffer_of(device);
  send_options(members_[handle].group, options_of(members_[handle]));
  std::vector<StepTensor> tensors{make_step_tensor(handle)};
  register_changed(tensors);
  const void* const grad = tensors[0].grad.data_ptr();
  const auto dtype = static_cast<std::uint8_t>(native::dtype_number(tensors[0].grad.scalar_type()));
  call_engine([&](Engine& engine) {
    engine.take({&handle, 1}, {&grad, 1}, {&dtype, 1}, native::device_kind(device),
                native::device_index(device), native::handle_of(native::current_stream(device)));
  });
  retain_grad(tensors[0]);
  limit_retained_grads();
}

inline void Optimizer::zero_grad(bool set_to_none) {
  ::torch::optim::Optimizer::zero_grad(set_to_none);
  drop_gradients();
}

inline void Optimizer::drop_gradients() {
  if (offloads()) call_engine([](Engine& engine) { engine.drop(); });
}

// Removes a gradient from its parameter and keeps it until the engine has read it: torch's allocator does not
// know the engine's streams.
inline void Optimizer::retain_grad(const StepTensor& tensor) {
  retained_bytes_ += static_cast<std::int64_t>(tensor.grad.nbytes());
  retained_.push_back({tensor.handle, native::StreamTensor(tensor.grad, tensor.grad.device())});
  tensor.param.mutable_grad().reset();
}

// Makes the current stream wait for the oldest reads until at most kMostRetainedBytes are kept.
inline void Optimizer::limit_retained_grads() {
  while (retained_bytes_ > kMostRetainedBytes) release_grads({retained_.front().handle});
}

// Runs after a step. The gradients of a deferred step are read later, so it removes them from the parameters.
inline void Optimizer::retain_for_step(const std::vector<StepTensor>& tensors) {
  if (!offloads()) return;
  if (!attached_) return release_grads({});
  for (const StepTensor& tensor : tensors) {
    Member& member = members_[tensor.handle];
    if (member.residence == kOnDevice) continue;
    member.weight = tensor.param.storage();
    if (!tensor.grad.defined()) continue;
    retain_grad(tensor);
  }
  used_scalar_copies_ = std::exchange(scalar_copies_, {});
}

// Orders the current streams after the reads of these parameters' gradients (no handles: of all gradients),
// and frees the gradients. Their memory returns to the stream of its allocation, which may be another one.
inline void Optimizer::release_grads(const std::vector<std::uint32_t>& handles) {
  const bool all = handles.empty();
  std::vector<bool> released(members_.size(), false);
  for (const std::uint32_t handle : handles) released[handle] = true;
  const auto first = std::stable_partition(retained_.begin(), retained_.end(), [&](const RetainedGrad& each) {
    return !all && (each.handle >= released.size() || !released[each.handle]);
  });
  if (!all && first == retained_.end()) return;
  call_on_devices(&Engine::wait, handles, Engine::Wait::gradients);
  for (auto each = first; each != retained_.end(); ++each) {
    const Tensor& grad = each->grad.tensor();
    retained_bytes_ -= static_cast<std::int64_t>(grad.nbytes());
    each->grad.on(native::current_stream(grad.device()));
  }
  retained_.erase(first, retained_.end());
}

}  // namespace octavo::torch
