// What the engine was told of each parameter, and states brought into the form that it needs: complete, and
// on the parameter's device or in their place in host memory.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/host_states.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo::torch {

// A parameter that has a gradient, at this step.
struct Item {
  ::torch::Tensor param;
  ::torch::Tensor grad;  // in the parameter's memory order; undefined: it was taken to host memory
  std::uint32_t handle;  // its number among all parameters: what stochastic rounding is keyed by, too
  Where where;
  ParamState* state;  // null before its first step
};

// A parameter as the engine knows it.
struct Record {
  const void* impl = nullptr;  // whose record it is
  bool known = false;          // the engine knows the parameter, as `told`
  octavo_engine_tensor told{};
  std::uint32_t switches = 0;
  ::torch::Tensor own;  // gradient release: the norms of its own gradient and of what clips it
  std::uint32_t residence = kOnDevice;  // where its state lives
  HostPlace place;                      // of its state, where that is in host memory
  std::uint64_t version = 0;            // of the parameter when the engine last knew its values
  // The engine's queues write these also after the state was removed or the parameter got other memory.
  ::torch::Tensor count;
  c10::Storage weight;  // of a deferred step, until it was waited for

  bool fits(const octavo_engine_tensor& now, std::uint32_t switches_now) const {
    return known && switches == switches_now && std::memcmp(&told, &now, sizeof now) == 0;
  }
};

inline void* address(const ::torch::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

// How often a tensor was written, as autograd counts; 0 where it does not.
inline std::uint64_t version_of(const ::torch::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// Where the step count of a parameter is: with the CPU where that updates it.
inline ::torch::Device count_device(const ::torch::Tensor& param, std::uint32_t residence, bool on_device) {
  return on_device && residence != kOnHost ? param.device() : ::torch::Device(::torch::kCPU);
}

// A parameter and its complete state for the engine.
inline octavo_engine_tensor described(const Item& item, const Options& options, const Own& own,
                                      std::uint32_t residence, bool counts_on_device, bool held_in_fp32) {
  const ParamState& state = *item.state;
  const ::torch::Device device = item.param.device();
  octavo_engine_tensor out = native::sized<octavo_engine_tensor>();
  const octavo_tensor_spec spec = spec_of(item.param, options, item.where);
  out.group = static_cast<std::uint32_t>(item.where.group);
  out.param_dtype = spec.param_dtype, out.store = spec.store;
  out.format = state.format.empty() ? 0 : native::parse("state", state.format);
  out.block_size = state.block_size;
  out.ndim = spec.ndim, out.numel = spec.numel;
  std::memcpy(out.shape, spec.shape, sizeof out.shape);
  out.param_device_kind = out.state_device_kind = native::device_kind(device);
  out.param_device_index = out.state_device_index = native::device_index(device);
  if (residence != kOnDevice) out.state_device_kind = out.state_device_index = 0;
  out.residence = residence, out.held_in_fp32 = held_in_fp32 ? 1 : 0;
  out.step_on_device = count_device(item.param, residence, counts_on_device).is_cpu() ? 0 : 1;
  out.whole_numel = own.shard.whole_numel, out.offset = own.shard.offset, out.norm_part = own.shard.part;
  out.id = item.handle;
  out.param = item.param.data_ptr();
  out.residual = address(state.master);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    out.codes[slot] = address(state.codes[slot]);
    out.scales[slot] = static_cast<float*>(address(state.scales[slot]));
  }
  out.step = static_cast<std::int64_t*>(address(state.count));
  out.known_steps = -2;  // as before
  return out;
}

// Adds the tensors that a state lacks, and moves those that are elsewhere: to the parameter's device, or to
// their place in host memory where they have one.
inline void complete_state(ParamState& state, const ::torch::Tensor& param, const Kind& kind,
                           const HostPlace& place, bool first_step_fills) {
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    if (state.codes[slot].defined()) continue;
    if (first_step_fills) state.count = ::torch::Tensor();  // also where a switch is turned on later
    state.format = kind.format, state.block_size = kind.block_size;
  }
  // The parameter was bf16, or had a master.
  if (kind.layout.residual_bytes == 0) state.master = ::torch::Tensor();
  if (place.data != nullptr) return move_to_host(state, kind, place);
  const auto device = param.device();
  ParamState::each(state, [&](const std::string&, ::torch::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device);
  });
  for (const StateBuffer& buffer : state_buffers(state, kind)) {
    if (buffer.tensor->defined()) continue;
    const auto count = buffer.bytes / static_cast<std::int64_t>(c10::elementSize(buffer.type));
    *buffer.tensor = ::torch::zeros({count}, ::torch::TensorOptions().dtype(buffer.type).device(device));
  }
}

}  // namespace octavo::torch
