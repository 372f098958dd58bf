// What the engine was told of each parameter, and states brought into the form that it needs: complete, and
// on the parameter's device.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/tensors.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace octavo::torch {

// A parameter that has a gradient, at this step.
struct Item {
  ::torch::Tensor param;
  ::torch::Tensor grad;  // in the parameter's memory order
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

  bool fits(const octavo_engine_tensor& now, std::uint32_t switches_now) const {
    return known && switches == switches_now && std::memcmp(&told, &now, sizeof now) == 0;
  }
};

inline void* address(const ::torch::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr() : nullptr; }

// A parameter and its complete state for the engine.
inline octavo_engine_tensor described(const Item& item, const Options& options, const Own& own,
                                      bool counts_on_device) {
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
  out.step_on_device = counts_on_device && !device.is_cpu() ? 1 : 0;
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

// The elements of buffers that belong to `numel` elements of a parameter.
inline ::torch::ScalarType codes_type(std::int64_t bytes, std::int64_t numel) {
  return bytes == 4 * numel ? ::torch::kFloat32 : bytes == 2 * numel ? ::torch::kBFloat16 : ::torch::kUInt8;
}
inline ::torch::ScalarType master_type(std::int64_t bytes, std::int64_t numel) {
  return bytes == numel ? ::torch::kInt8 : ::torch::kInt16;
}

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
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    if (state.codes[slot].defined()) continue;
    if (first_step_fills) state.count = ::torch::Tensor();  // also where a switch is turned on later
    const std::int64_t codes = kind.layout.codes_bytes[slot];
    state.codes[slot] = zeros(codes, codes_type(codes, param.numel()));
    if (kind.layout.scales[slot] > 0)
      state.scales[slot] = zeros(4 * kind.layout.scales[slot], ::torch::kFloat32);
    state.format = kind.format, state.block_size = kind.block_size;
  }
  const std::int64_t master = kind.layout.residual_bytes;
  if (master == 0) state.master = ::torch::Tensor();  // the parameter was bf16, or had a master
  if (master > 0 && !state.master.defined()) {
    state.master = zeros(master, master_type(master, param.numel()));
  }
}

}  // namespace octavo::torch
