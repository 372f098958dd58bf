// What offload adds to octavo::torch::Optimizer: which states live in host memory and where there, gradients
// that are taken, and who waits for what. Included by optimizer.h.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

#include <algorithm>

namespace octavo::torch {

// Gradients that are still read although nobody else has them: at most about so many bytes.
constexpr std::int64_t kMostBytesRead = std::int64_t{160} << 20;

// Chooses where the states of all parameters live, by the rule that all adapters have.
inline void Optimizer::place() {
  if (placed_) return;
  const std::string& offload = whole().offload.value;
  std::vector<std::uint32_t> handles;
  std::vector<Kind> kinds;
  std::vector<octavo_residence_tensor> sizes;
  for (std::uint32_t handle = 0; handle < places_.size(); ++handle) {
    records_[handle].residence = kOnDevice;
    const Tensor& param = param_of(handle);
    if (!offloads() || (offload == "auto" && param.is_cpu())) continue;
    kinds.push_back(octavo::torch::kind_of(param, options_of(places_[handle].first), own_of(param),
                                           find_state(param), where(handle)));
    handles.push_back(handle);
    sizes.push_back({param.numel(), octavo::torch::state_bytes(kinds.back())});
  }
  std::vector<std::uint32_t> chosen(handles.size());
  native::check(
      octavo_choose_residences(sizes.data(), static_cast<std::int64_t>(sizes.size()),
                               offload == "host" ? kOnHost : kStreamed, whole().min_offload_size.value,
                               whole().offload_ratio.value, whole().gpu_state_budget.value, chosen.data()),
      std::string("octavo::torch::") + name_ + ": ");
  std::vector<std::uint32_t> leaving;
  std::vector<Kind> leaving_kinds;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    records_[handles[i]].residence = chosen[i];
    const Tensor& param = param_of(handles[i]);
    const bool trained = param.requires_grad() || param.grad().defined();
    if (chosen[i] == kOnDevice || !trained || records_[handles[i]].place.bytes == host_bytes(kinds[i]))
      continue;
    leaving.push_back(handles[i]);
    leaving_kinds.push_back(kinds[i]);
  }
  place_on_host(leaving, leaving_kinds);
  placed_ = true;
}

// Throws where host memory cannot hold what leaves the device: states, and the engine's copies.
inline void Optimizer::check_room(const std::vector<std::uint32_t>& leaving,
                                  const std::vector<Kind>& kinds) const {
  std::int64_t states = 0, copies = 0;
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    const Tensor& param = param_of(leaving[i]);
    const bool on_host = records_[leaving[i]].residence == kOnHost;
    const std::int64_t grad = param.numel() * (whole().accumulate_in_fp32.value ? 4 : param.element_size());
    states += host_bytes(kinds[i]);
    if (on_host) copies += static_cast<std::int64_t>(param.nbytes());
    if (on_host || whole().offload_gradients.value) copies += grad;
  }
  const std::int64_t room = octavo_host_room();
  if (states + copies <= room) return;
  std::string fits;
  for (std::int32_t f = 0; f < octavo_format_count() && fits.empty(); ++f) {
    octavo_format_info info = native::sized<octavo_format_info>();
    native::check(octavo_format(f, &info), "octavo: ");
    std::int64_t then = copies;
    for (Kind kind : kinds) {
      kind.spec.format = info.number, kind.spec.block_size = 0;
      native::check(octavo_layout(kind.algorithm, kind.switches, &kind.spec, &kind.layout), "octavo: ");
      then += host_bytes(kind);
    }
    if (then <= room)
      fits = std::string("state(\"") + info.name + "\") needs " + std::to_string(then) + ", or ";
  }
  TORCH_CHECK(false, "octavo::torch::", name_, ": offload: ", states + copies,
              " bytes of host memory are needed (", states, " of states, ", copies,
              " of copies of weights and gradients), and ", room, " are free; ", fits,
              "lower offload_ratio or set gpu_state_budget, so that more states stay on the device");
}

// One block for all, in their order.
inline void Optimizer::place_on_host(const std::vector<std::uint32_t>& leaving,
                                     const std::vector<Kind>& kinds) {
  if (leaving.empty()) return;
  check_room(leaving, kinds);
  std::int64_t total = 0;
  bool pin = false;
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    total += host_bytes(kinds[i]);
    pin = pin || !param_of(leaving[i]).is_cpu();
  }
  const std::shared_ptr<std::byte> block = host_block(total, pin);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    const std::int64_t bytes = host_bytes(kinds[i]);
    records_[leaving[i]].place = {std::shared_ptr<std::byte>(block, block.get() + offset), bytes};
    offset += bytes;
  }
}

// Where the state goes: an empty place stands for the parameter's device. A state that has changed its kind
// since all were placed gets memory of its own.
inline const HostPlace& Optimizer::place_of(const Item& item, const Kind& kind) {
  static const HostPlace none;
  Record& record = records_[item.handle];
  if (record.residence == kOnDevice) return none;
  if (record.place.bytes != host_bytes(kind)) place_on_host({item.handle}, {kind});
  return record.place;
}

inline void Optimizer::settle() const {
  if (offloads() && engine_) expect(octavo_engine_synchronize(engine_.get()));
}

// Parameters that were written since the last step: the host updates copies of them.
inline void Optimizer::refresh(const std::vector<Item>& items) {
  if (!offloads()) return;
  for (const Item& item : items) buffers_of(item.param.device());
  for (const DeviceBuffers& buffers : devices_) {
    std::vector<std::uint32_t> changed;
    for (const Item& item : items) {
      Record& record = records_[item.handle];
      if (record.residence != kOnHost || item.param.device() != buffers.device) continue;
      if (record.version == version_of(item.param)) continue;
      record.version = version_of(item.param);
      changed.push_back(item.handle);
    }
    if (changed.empty()) continue;
    expect(octavo_engine_refresh(engine_.get(), changed.data(), static_cast<std::int64_t>(changed.size()), 0,
                                 native::device_kind(buffers.device), native::device_index(buffers.device),
                                 native::handle_of(native::current_stream(buffers.device))));
  }
}

inline void Optimizer::sync_params(const std::string& way) {
  TORCH_CHECK(way == "to_host" || way == "to_device", "octavo::torch::", name_, ": sync_params: got '", way,
              "', expected \"to_host\" or \"to_device\"");
  const ::torch::NoGradGuard no_grad;
  for (const DeviceBuffers& buffers : devices_) {
    std::vector<std::uint32_t> known;
    for (std::uint32_t handle = 0; handle < records_.size(); ++handle) {
      const Record& record = records_[handle];
      if (record.known && record.residence == kOnHost && param_of(handle).device() == buffers.device)
        known.push_back(handle);
    }
    if (known.empty()) continue;
    expect(octavo_engine_refresh(engine_.get(), known.data(), static_cast<std::int64_t>(known.size()),
                                 way == "to_host" ? 0 : 1, native::device_kind(buffers.device),
                                 native::device_index(buffers.device),
                                 native::handle_of(native::current_stream(buffers.device))));
    for (const std::uint32_t handle : known) {
      const Tensor& param = param_of(handle);
      if (way == "to_device" && !param.is_inference()) param.unsafeGetTensorImpl()->bump_version();
      records_[handle].version = version_of(param);
    }
  }
}

inline void Optimizer::take(const Tensor& param) {
  const ::torch::NoGradGuard no_grad;
  take(handle_of(param, "take"));
}

inline void Optimizer::take(std::uint32_t handle) {
  place();
  const Tensor& param = param_of(handle);
  if (records_[handle].residence == kOnDevice || !param.grad().defined()) return;
  const ::torch::Device device = param.device();
  buffers_of(device);
  const std::size_t group = places_[handle].first;
  set_group(group, options_of(group));
  std::vector<Item> items{item_of(handle)};
  prepare(items);
  const void* grad = items[0].grad.data_ptr();
  const auto dtype = static_cast<std::uint8_t>(native::dtype_number(items[0].grad.scalar_type()));
  expect(octavo_engine_take(engine_.get(), &handle, &grad, &dtype, 1, native::device_kind(device),
                            native::device_index(device), native::handle_of(native::current_stream(device))));
  param.mutable_grad().reset();
  keep(handle, items[0].grad);
}

inline void Optimizer::zero_grad(bool set_to_none) {
  ::torch::optim::Optimizer::zero_grad(set_to_none);
  drop_taken();
}

inline void Optimizer::drop_taken() {
  if (offloads()) expect(octavo_engine_drop(engine_.get(), nullptr, 0));
}

// Keeps a gradient until it was read. Torch's allocator does not know of the engine's streams: the current
// stream waits for the oldest ones, and their memory is free again in its order.
inline void Optimizer::keep(std::uint32_t handle, const Tensor& grad) {
  reading_bytes_ += static_cast<std::int64_t>(grad.nbytes());
  reading_.push_back({handle, native::Used(grad, grad.device())});
  while (reading_bytes_ > kMostBytesRead) let_go({reading_.front().handle});
}

// Orders the current streams behind the reads of these gradients, and keeps them no longer.
inline void Optimizer::let_go(const std::vector<std::uint32_t>& handles) {
  if (reading_.empty()) return;
  std::vector<bool> asked(records_.size(), false), found = asked;
  for (const std::uint32_t handle : handles) asked[handle] = true;
  const auto stays = [&](const Reading& each) { return each.handle >= asked.size() || !asked[each.handle]; };
  std::vector<std::uint32_t> read;
  for (const Reading& each : reading_) {
    if (stays(each) || found[each.handle]) continue;
    found[each.handle] = true;
    read.push_back(each.handle);
  }
  if (read.empty()) return;
  wait_for(read, 1);
  const auto first = std::stable_partition(reading_.begin(), reading_.end(), stays);
  std::for_each(first, reading_.end(), [&](Reading& each) { end(each); });
  reading_.erase(first, reading_.end());
}

inline void Optimizer::let_go_of_all() {
  wait_for({}, 1);
  for (Reading& each : reading_) end(each);
  reading_.clear();
}

// Memory goes back to the stream that the gradient came on. The current one, which is behind its reads, may
// be another.
inline void Optimizer::end(Reading& read) {
  const Tensor& grad = read.grad.tensor();
  reading_bytes_ -= static_cast<std::int64_t>(grad.nbytes());
  read.grad.on(native::current_stream(grad.device()));
}

// After a step. The gradients of a deferred one are read later: they are the optimizer's from now on.
inline void Optimizer::hand_over(const std::vector<Item>& items) {
  if (!offloads()) return;
  if (!attached_) return let_go_of_all();
  for (const Item& item : items) {
    if (records_[item.handle].residence == kOnDevice) continue;
    records_[item.handle].weight = item.param.storage();
    if (!item.grad.defined()) continue;
    reading_bytes_ += static_cast<std::int64_t>(item.grad.nbytes());
    reading_.push_back({item.handle, native::Used(item.grad, item.grad.device())});
    item.param.mutable_grad().reset();
  }
  used_scalars_ = std::exchange(scalars_, {});
}

// Orders the current streams behind weights (0), or behind reads of gradients (1); none: of all.
inline void Optimizer::wait_for(const std::vector<std::uint32_t>& handles, std::uint32_t what) {
  for (const DeviceBuffers& buffers : devices_) {
    std::vector<std::uint32_t> here;
    for (const std::uint32_t handle : handles) {
      if (param_of(handle).device() == buffers.device) here.push_back(handle);
    }
    if (here.empty() && !handles.empty()) continue;
    expect(octavo_engine_wait(engine_.get(), here.data(), static_cast<std::int64_t>(here.size()), what,
                              native::device_kind(buffers.device), native::device_index(buffers.device),
                              native::handle_of(native::current_stream(buffers.device))));
  }
}

inline void Optimizer::wait() {
  if (!offloads()) return;
  wait_for({}, 0);
  let_go_of_all();
  for (Record& record : records_) record.weight = {};
}

inline void Optimizer::wait(const std::vector<Tensor>& params) {
  if (!offloads()) return;
  std::vector<std::uint32_t> handles;
  for (const Tensor& param : params) {
    const std::uint32_t* const handle = find_handle(param);
    if (handle == nullptr || !records_[*handle].known || records_[*handle].residence == kOnDevice) continue;
    handles.push_back(*handle);
  }
  if (handles.empty()) return;
  wait_for(handles, 0);
  for (const std::uint32_t handle : handles) records_[handle].weight = {};
  // What was taken for the next step may still be on its way to host memory. A forward pass between two
  // backward passes does not wait for that.
  std::vector<std::uint32_t> stepped;
  for (const std::uint32_t handle : handles) {
    if (!held(handle)) stepped.push_back(handle);
  }
  let_go(stepped);
  if (!attached_) return;
  waited_.resize(records_.size());
  for (const std::uint32_t handle : handles) {
    if (!waited_[handle]) order_.push_back(handle);
    waited_[handle] = true;
  }
}

// The next updates come in the order in which parameters were waited for.
inline void Optimizer::tell_order() {
  if (!attached_) return;
  waited_.clear();
  std::vector<std::uint32_t> order;
  for (const std::uint32_t handle : std::exchange(order_, {})) {
    if (handle < records_.size() && records_[handle].known) order.push_back(handle);
  }
  if (order.empty() || order == told_order_) return;
  expect(octavo_engine_set_order(engine_.get(), order.data(), static_cast<std::int64_t>(order.size())));
  told_order_ = std::move(order);
}

// A scalar that a deferred step reads later, when its owner may have changed it: a copy of it as it is now.
inline ::torch::Tensor Optimizer::steady(const Tensor& scalar) {
  if (!attached_) return scalar;
  for (const auto& [given, copy] : scalars_) {
    if (given.is_same(scalar)) return copy;
  }
  scalars_.emplace_back(scalar, scalar.clone());
  return scalars_.back().second;
}

inline const char* Optimizer::residence_of(const Tensor& param) {
  if (!placed_) complete_groups(), place();
  const std::uint32_t residence = records_[handle_of(param, "residence_of")].residence;
  return residence == kOnHost ? "host" : residence == kStreamed ? "stream" : "device";
}

inline std::int64_t Optimizer::host_state_bytes() const {
  std::int64_t total = 0;
  for (std::uint32_t handle = 0; handle < records_.size(); ++handle) {
    const ParamState* const state = find_state(param_of(handle));
    if (state != nullptr && records_[handle].residence != kOnDevice) total += state->bytes();
  }
  return total;
}

}  // namespace octavo::torch
