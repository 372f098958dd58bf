// Parameters and gradients: the requirements on them, and their descriptions for the core. States of
// parameters: their tensors, format and sizes, and their memory on the device or in host memory. Errors are
// c10::Error and name the parameter.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/options.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

namespace octavo::torch {

// A parameter's name in error messages.
struct ParamName {
  const char* optimizer;
  std::size_t group, index;

  friend std::ostream& operator<<(std::ostream& out, const ParamName& name) {
    return out << "octavo::torch::" << name.optimizer << ": parameter " << name.index << " of group "
               << name.group << ": ";
  }
};

inline void check_param(const ::torch::Tensor& param, const ParamName& name) {
  TORCH_CHECK(param.defined(), name, "it is undefined, expected a tensor");
  TORCH_CHECK(param.layout() == ::torch::kStrided, name, param.layout(),
              " parameters are not supported, expected a dense tensor");
  TORCH_CHECK(native::dtype_number(param.scalar_type()) >= 0, name, c10::toString(param.scalar_type()),
              " parameters are not supported, expected Float, BFloat16 or Half");
  TORCH_CHECK(param.is_cpu() || param.is_cuda(), name, "parameters on ", param.device(),
              " are not supported, expected cpu or cuda");
  TORCH_CHECK(param.is_non_overlapping_and_dense(), name, "its memory has gaps (shape ", param.sizes(),
              ", strides ", param.strides(),
              "), expected a dense tensor; make it a parameter of its own with contiguous()");
}

inline void check_grad(const ::torch::Tensor& param, const ::torch::Tensor& grad, const ParamName& name) {
  TORCH_CHECK(grad.layout() == ::torch::kStrided, name,
              "sparse gradients are not supported; make the embedding with sparse(false)");
  TORCH_CHECK(grad.device() == param.device(), name, "its gradient is on ", grad.device(), ", expected ",
              param.device(), ", where the parameter is");
  TORCH_CHECK(grad.sizes() == param.sizes(), name, "its gradient has shape ", grad.sizes(), ", expected ",
              param.sizes());
  TORCH_CHECK(native::dtype_number(grad.scalar_type()) >= 0, name, c10::toString(grad.scalar_type()),
              " gradients are not supported, expected Float, BFloat16 or Half");
}

// Returns the gradient in the memory order of the parameter: a copy if its own order differs.
inline ::torch::Tensor in_memory_order(const ::torch::Tensor& grad, const ::torch::Tensor& param) {
  if (grad.strides() == param.strides() || (grad.is_contiguous() && param.is_contiguous())) return grad;
  return ::torch::empty_strided(param.sizes(), param.strides(), grad.options()).copy_(grad);
}

// Returns the sizes from the slowest dimension to the fastest.
inline at::DimVector memory_shape(const ::torch::Tensor& param) {
  at::DimVector shape(param.sizes().begin(), param.sizes().end());
  if (param.is_contiguous()) return shape;
  at::DimVector order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return param.stride(a) > param.stride(b); });
  std::transform(order.begin(), order.end(), shape.begin(), [&](auto d) { return param.size(d); });
  return shape;
}

// The position of a tensor that is a part of a larger parameter.
struct Shard {
  std::int64_t offset = 0;       // of its first element in the complete parameter
  std::int64_t whole_numel = 0;  // of the complete parameter; 0: this tensor or another rank has all of it
  std::uint32_t part = 0;        // not 0: other ranks have parts of its gradient; see set_norm_reduce()
};

// The choices of set_shard() and set_format() for one parameter.
struct Overrides {
  Shard shard;
  std::string format;  // empty: the format in the group's options
  std::int64_t block_size = 0;
};

// Returns the core's number for the bits that the parameter keeps beyond its own.
inline std::uint32_t store_of(const ::torch::Tensor& param, const std::string& master,
                              const ParamName& name) {
  if (master == "none" || master == "native" || param.scalar_type() == ::torch::kFloat32) {
    return 0;  // a float parameter is its own master
  }
  TORCH_CHECK(param.scalar_type() == ::torch::kBFloat16, name, "it is ", c10::toString(param.scalar_type()),
              ", and master \"", master,
              "\" needs BFloat16 (or Float, its own master); use master(\"none\")");
  return native::parse("store", master == "24" ? "bf16+8" : master == "32" ? "bf16+16" : master);
}

// Returns the parameter's description for the core, without its format.
inline octavo_tensor_spec spec_of(const ::torch::Tensor& param, const Options& options,
                                  const ParamName& name) {
  octavo_tensor_spec spec = octavo::make<octavo_tensor_spec>();
  spec.param_dtype = static_cast<std::uint32_t>(native::dtype_number(param.scalar_type()));
  spec.store = store_of(param, options.settings().master.value, name);
  spec.numel = param.numel();
  const at::DimVector shape = memory_shape(param);
  if (shape.size() <= std::size(spec.shape)) {  // the core counts more dimensions as one
    spec.ndim = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), spec.shape);
  }
  return spec;
}

constexpr std::size_t kSlots = 3;  // the most moments that an algorithm keeps

// Tensors are flat, in the parameter's memory order, and begin as zero bytes. A state keeps the format in
// which it was made, even if the group's options change.
class ParamState : public ::torch::optim::OptimizerCloneableParamState<ParamState> {
 public:
  // Returns the number of steps. Waits for the device if the count is on a device (with skip_nonfinite).
  std::int64_t step() const { return count.defined() ? count.item<std::int64_t>() : 0; }

  ::torch::Tensor count;  // int64; a separate tensor for each parameter
  std::array<::torch::Tensor, kSlots> codes, scales;
  ::torch::Tensor master;
  std::string format;  // empty: there are no moments yet
  std::int64_t block_size = 0;

  // Returns the bytes of moments, scales and master bits.
  std::int64_t bytes() const {
    std::int64_t total = 0;
    each(*this, [&](const std::string&, const ::torch::Tensor& tensor) {
      if (tensor.defined()) total += static_cast<std::int64_t>(tensor.nbytes());
    });
    return total;
  }

  // Calls f(name, tensor) for each tensor except the count.
  template <class Self, class F>
  static void each(Self& self, F&& f) {
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      f("moment_" + std::to_string(slot), self.codes[slot]);
      f("moment_" + std::to_string(slot) + "_scale", self.scales[slot]);
    }
    f(std::string("master"), self.master);
  }

  void serialize(::torch::serialize::OutputArchive& archive) const override {
    archive.write("step", c10::IValue(step()));
    archive.write("format", c10::IValue(format));
    archive.write("block_size", c10::IValue(block_size));
    each(*this, [&](const std::string& name, const ::torch::Tensor& tensor) {
      if (tensor.defined()) archive.write(name, tensor, /*is_buffer=*/true);
    });
  }
  void serialize(::torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("step", value);
    count = ::torch::tensor(value.toInt(), ::torch::kInt64);
    archive.read("format", value);
    format = value.toStringRef();
    archive.read("block_size", value);
    block_size = value.toInt();
    each(*this, [&](const std::string& name, ::torch::Tensor& tensor) {
      ::torch::Tensor found;
      if (archive.try_read(name, found, /*is_buffer=*/true)) tensor = found;
    });
  }
};

// How the state of one parameter is stored: the parameter's description for the core, and the sizes of the
// buffers.
struct Kind {
  octavo_tensor_spec spec{};
  octavo_tensor_layout layout{};
  std::string format;
  std::int64_t block_size = 0;
  std::uint32_t algorithm = 0, switches = 0;
};

// Returns the sizes of the buffers of a parameter with this description.
template <class Prefix>
octavo_tensor_layout layout_of(const Kind& kind, const octavo_tensor_spec& spec, const Prefix& prefix) {
  auto layout = octavo::make<octavo_tensor_layout>();
  native::check(octavo_layout(kind.algorithm, kind.switches, &spec, &layout), prefix);
  return layout;
}

// Returns the kind of `state`, or the kind that the options ask for if there is no state yet (null).
inline Kind kind_of(const ::torch::Tensor& param, const Options& options, const Overrides& overrides,
                    const ParamState* state, const ParamName& name) {
  const Settings& settings = options.settings();
  Kind kind;
  kind.spec = spec_of(param, options, name);
  if (state != nullptr && !state->format.empty()) {
    kind.format = state->format, kind.block_size = state->block_size;
    kind.spec.format = native::parse("state", kind.format);
  } else {
    const bool set = !overrides.format.empty(), sharded = overrides.shard.whole_numel != 0;
    const std::uint32_t wanted = native::parse("state", set ? overrides.format : settings.state.value);
    const std::int64_t whole = sharded ? overrides.shard.whole_numel : param.numel();
    // A format that was set for this parameter is used for any size.
    native::check(octavo_format_for(wanted, whole, set ? 0 : settings.min_quantized_size.value,
                                    sharded ? 1 : 0, &kind.spec.format),
                  name);
    const octavo_format_info info = native::format_info(kind.spec.format);
    kind.format = info.name;
    if (info.default_block > 0) kind.block_size = set ? overrides.block_size : settings.block_size.value;
  }
  kind.spec.block_size = kind.block_size;
  kind.algorithm = options.algorithm().info.number;
  kind.switches = options.switches();
  kind.layout = layout_of(kind, kind.spec, name);
  return kind;
}

// Returns the sizes of the buffers that belong to the first `numel` elements: the state of a shard begins
// there if its first element is a multiple of the block.
inline octavo_tensor_layout layout_of_first(const Kind& kind, std::int64_t numel) {
  if (numel == kind.spec.numel) return kind.layout;
  octavo_tensor_spec spec = kind.spec;
  spec.numel = numel, spec.ndim = 0;
  return layout_of(kind, spec, "octavo: ");
}

// Checks that the tensors of a state (loaded, or of a parameter that has changed) have the kind's sizes.
inline void check_state(const ParamState& state, const Kind& kind, const ParamName& name) {
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    if (!state.codes[slot].defined()) continue;
    const auto codes = static_cast<std::int64_t>(state.codes[slot].nbytes());
    const std::int64_t scales = state.scales[slot].defined() ? state.scales[slot].numel() : 0;
    TORCH_CHECK(codes == kind.layout.codes_bytes[slot] && scales == kind.layout.scales[slot], name, "its ",
                kind.format, " state has ", codes, " bytes and ", scales, " scales, expected ",
                kind.layout.codes_bytes[slot], " and ", kind.layout.scales[slot],
                "; parameters must keep their shape (or make a new optimizer)");
    TORCH_CHECK(state.codes[slot].is_contiguous() && (scales == 0 || state.scales[slot].is_contiguous()),
                name, "its state has gaps in memory, expected contiguous tensors");
  }
  if (!state.master.defined() || kind.layout.residual_bytes == 0) return;
  const auto master = static_cast<std::int64_t>(state.master.nbytes());
  TORCH_CHECK(master == kind.layout.residual_bytes, name, "its master has ", master, " bytes, expected ",
              kind.layout.residual_bytes,
              "; keep the parameter's shape and the option `master` that it was made with");
  TORCH_CHECK(state.master.is_contiguous(), name,
              "its master has gaps in memory, expected a contiguous tensor");
}

// Return the dtype of codes and of master bits that have this many bytes for `numel` elements.
inline ::torch::ScalarType codes_type(std::int64_t bytes, std::int64_t numel) {
  return bytes == 4 * numel ? ::torch::kFloat32 : bytes == 2 * numel ? ::torch::kBFloat16 : ::torch::kUInt8;
}
inline ::torch::ScalarType master_type(std::int64_t bytes, std::int64_t numel) {
  return bytes == numel ? ::torch::kInt8 : ::torch::kInt16;
}

// One tensor of a state.
struct StateBuffer {
  ::torch::Tensor* tensor;
  std::int64_t bytes;
  ::torch::ScalarType type;  // of a new tensor
};

// Returns the tensors that a state of this kind has, in their order in host memory.
inline std::vector<StateBuffer> state_buffers(ParamState& state, const Kind& kind) {
  std::vector<StateBuffer> out;
  const std::int64_t numel = kind.spec.numel;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    const std::int64_t codes = kind.layout.codes_bytes[slot];
    out.push_back({&state.codes[slot], codes, codes_type(codes, numel)});
    if (kind.layout.scales[slot] > 0)
      out.push_back({&state.scales[slot], 4 * kind.layout.scales[slot], ::torch::kFloat32});
  }
  const std::int64_t master = kind.layout.residual_bytes;
  if (master > 0) out.push_back({&state.master, master, master_type(master, numel)});
  return out;
}

// Returns the bytes of a state of this kind, if each of its buffers is aligned to `alignment`.
inline std::int64_t state_bytes(const Kind& kind, std::int64_t alignment = 1) {
  std::int64_t total = 0;
  ParamState none;
  for (const StateBuffer& buffer : state_buffers(none, kind))
    total += (buffer.bytes + alignment - 1) / alignment * alignment;
  return total;
}

constexpr std::int64_t kHostAlignment = 64;  // of each buffer in host memory
inline std::int64_t host_bytes(const Kind& kind) { return state_bytes(kind, kHostAlignment); }

// A range of host memory. It keeps the complete allocation alive.
struct HostMemory {
  std::shared_ptr<std::byte> data;  // null: none
  std::int64_t bytes = 0;
};

// Returns zeroed memory. If it cannot be pinned, copies from and to it block the caller.
inline std::shared_ptr<std::byte> allocate_host_memory(std::int64_t bytes, bool pin) {
  void* data = nullptr;
  std::uint32_t pinned = 0;
  native::check(octavo_host_alloc(std::max<std::int64_t>(bytes, 1), pin ? 1 : 0, &data, &pinned), "octavo: ");
  if (pin && pinned == 0) {
    TORCH_WARN(
        "octavo: offloaded states are in memory that is not pinned, so copies are slower and hold up the "
        "caller: ",
        octavo_last_error());
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data), octavo_host_free);
}

// Adds the tensors that a state lacks, and moves its other tensors: into `host` if it has memory, which must
// be host_bytes(kind), otherwise to the parameter's device.
inline void complete_state(ParamState& state, const ::torch::Tensor& param, const Kind& kind,
                           const HostMemory& host, bool first_step_fills) {
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    if (state.codes[slot].defined()) continue;
    if (first_step_fills) state.count = ::torch::Tensor();  // also if a switch adds the moment later
    state.format = kind.format, state.block_size = kind.block_size;
  }
  if (kind.layout.residual_bytes == 0) state.master = ::torch::Tensor();  // it had one with other options
  const bool on_host = host.data != nullptr;
  ParamState::each(state, [&](const std::string&, ::torch::Tensor& tensor) {
    if (tensor.defined() && !on_host) tensor = tensor.to(param.device());
  });
  std::byte* next = host.data.get();
  for (const StateBuffer& buffer : state_buffers(state, kind)) {
    ::torch::Tensor& tensor = *buffer.tensor;
    const bool is_new = !tensor.defined();
    const auto options = ::torch::TensorOptions().dtype(is_new ? buffer.type : tensor.scalar_type());
    const auto count = buffer.bytes / static_cast<std::int64_t>(options.dtype().itemsize());
    if (!on_host) {
      if (is_new) tensor = ::torch::zeros({count}, options.device(param.device()));
      continue;
    }
    void* const at = next;
    next += (buffer.bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
    if (!is_new && tensor.data_ptr() == at) continue;
    const ::torch::Tensor placed = ::torch::from_blob(
        at, {count}, [keep = host.data](void*) {}, options);
    if (is_new) {
      placed.zero_();
    } else {
      placed.copy_(tensor.flatten());
    }
    tensor = placed;
  }
}

}  // namespace octavo::torch
