// What stays the same from step to step in one parameter group: the native groups, and how to tell that they
// still fit. A plan is made by examining everything. It is used again while parameters and states stay where
// they are and the same parameters have gradients. The addresses of gradients are read again at every step.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/tensors.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace octavo::torch {

// A parameter that has a gradient, at this step.
struct Item {
  ::torch::Tensor param;
  ::torch::Tensor grad;  // in the parameter's memory order
  std::size_t index;     // in its group
  std::uint64_t id;      // its number among all parameters: what stochastic rounding is keyed by
  ParamState* state;     // null before its first step
};

// Everything that a native group was made for, except the addresses of gradients.
struct Signature {
  explicit Signature(const Item& item)
      : addresses{item.param.unsafeGetTensorImpl(), item.param.data_ptr()},
        shape(memory_shape(item.param)),
        dtypes{item.param.scalar_type(), item.grad.scalar_type()},
        device(item.param.device()),
        id(item.id) {
    if (item.state == nullptr) return;
    const ParamState& s = *item.state;
    addresses[2] = s.count.defined() ? s.count.data_ptr() : nullptr;
    addresses[3] = s.master.defined() ? s.master.data_ptr() : nullptr;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      addresses[4 + slot] = s.codes[slot].defined() ? s.codes[slot].data_ptr() : nullptr;
      addresses[4 + kSlots + slot] = s.scales[slot].defined() ? s.scales[slot].data_ptr() : nullptr;
    }
    format = s.format, block_size = s.block_size;
  }

  bool operator==(const Signature& o) const {
    return addresses == o.addresses && shape == o.shape && dtypes == o.dtypes && device == o.device &&
           id == o.id && format == o.format && block_size == o.block_size;
  }

  std::array<const void*, 4 + 2 * kSlots> addresses{};
  at::DimVector shape;
  std::pair<::torch::ScalarType, ::torch::ScalarType> dtypes;
  ::torch::Device device;
  std::uint64_t id;
  std::string format;
  std::int64_t block_size = 0;
};

inline std::vector<Signature> signatures(const std::vector<Item>& items) {
  return std::vector<Signature>(items.begin(), items.end());
}

// Parameters of one device with one step count: one native call.
struct Cohort {
  native::Group group;
  ::torch::Device device;
  std::vector<std::size_t> members;  // places among the items
  ::torch::Tensor count;             // shared by the members' states, and by no others

  void bind_grads(const std::vector<Item>& items) {
    std::vector<const void*> grads;
    grads.reserve(members.size());
    for (std::size_t member : members) grads.push_back(items[member].grad.data_ptr());
    group.bind_grads(std::move(grads));
  }
};

// The options that native groups are made for.
struct PlanKey {
  std::uint32_t switches;
  bool counts_on_device;
  std::string master;

  bool operator==(const PlanKey& o) const {
    return switches == o.switches && counts_on_device == o.counts_on_device && master == o.master;
  }
};

struct Plan {
  PlanKey key;
  std::vector<Signature> signatures;
  std::vector<Cohort> cohorts;
};

// Adds the tensors that a state lacks, and moves those of a parameter that was moved.
inline void complete_state(ParamState& state, const ::torch::Tensor& param, const Kind& kind,
                           bool first_step_fills) {
  const auto device = param.device();
  ParamState::each(state, [&](const std::string&, ::torch::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device);
  });
  const auto zeros = [&](std::int64_t bytes, ::torch::ScalarType type) {
    const auto count = bytes / static_cast<std::int64_t>(c10::elementSize(type));
    return ::torch::zeros({count}, ::torch::TensorOptions().dtype(type).device(device));
  };
  const std::int64_t bytes = native::moment_layout(kind.spec.format, 0).codes / 4096;
  const auto codes_type = bytes == 4 ? ::torch::kFloat32 : bytes == 2 ? ::torch::kBFloat16 : ::torch::kUInt8;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    if (state.codes[slot].defined()) continue;
    // Also where a switch is turned on later.
    if (first_step_fills) state.count = ::torch::Tensor();
    state.codes[slot] = zeros(kind.layout.codes_bytes[slot], codes_type);
    if (kind.layout.scales[slot] > 0)
      state.scales[slot] = zeros(4 * kind.layout.scales[slot], ::torch::kFloat32);
    state.format = kind.format, state.block_size = kind.block_size;
  }
  const std::int64_t master = kind.layout.residual_bytes;
  if (master == 0) state.master = ::torch::Tensor();  // the parameter was bf16, or had a master
  if (master > 0 && !state.master.defined()) {
    state.master = zeros(master, master == param.numel() ? ::torch::kInt8 : ::torch::kInt16);
  }
}

inline octavo_tensor bound(const Item& item, const Kind& kind) {
  octavo_tensor out{};
  out.spec = kind.spec;
  out.param = item.param.data_ptr();
  out.grad = item.grad.data_ptr();
  out.residual = item.state->master.defined() ? item.state->master.data_ptr() : nullptr;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    out.codes[slot] = item.state->codes[slot].data_ptr();
    const ::torch::Tensor& scales = item.state->scales[slot];
    out.scales[slot] = scales.defined() ? scales.data_ptr<float>() : nullptr;
  }
  out.id = item.id;
  return out;
}

// A plan for items whose states are complete. Counts that are on a device are read, so this may wait for it.
inline Plan make_plan(const PlanKey& key, const std::vector<Item>& items, const std::vector<Kind>& kinds,
                      const Options& options) {
  std::map<std::pair<std::pair<int, int>, std::int64_t>, std::vector<std::size_t>> by_count;
  std::map<const void*, std::int64_t> known;  // counts are shared: each is read once
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ParamState& state = *items[i].state;
    const void* shared = state.count.defined() ? state.count.data_ptr() : nullptr;
    const auto found = known.find(shared);
    const std::int64_t steps = found != known.end() ? found->second : known[shared] = state.step();
    const auto device = items[i].param.device();
    by_count[{{static_cast<int>(device.type()), device.index()}, steps}].push_back(i);
  }
  Plan plan{key, {}, {}};
  for (const auto& [where_and_when, members] : by_count) {
    const ::torch::Device device = items[members[0]].param.device();
    std::vector<octavo_tensor> tensors;
    for (std::size_t i : members) tensors.push_back(bound(items[i], kinds[i]));
    native::Group group(config_of(options, device), device, tensors);
    const ::torch::Device counts = key.counts_on_device ? device : ::torch::Device(::torch::kCPU);
    const auto made = ::torch::TensorOptions().dtype(::torch::kInt64).device(counts);
    plan.cohorts.push_back(
        {std::move(group), device, members, ::torch::full({}, where_and_when.second, made)});
  }
  return plan;
}

}  // namespace octavo::torch
