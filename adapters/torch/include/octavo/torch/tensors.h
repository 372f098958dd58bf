// What a parameter and its gradient must be, and what the core needs to know of them: shape in memory order,
// format and sizes of the state. Everything here only reads. Errors are c10::Error and name the parameter.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/options.h>
#include <octavo/torch/param_state.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <string>

namespace octavo::torch {

// The beginning of an error's message.
struct Where {
  const char* optimizer;
  std::size_t group, index;

  friend std::ostream& operator<<(std::ostream& out, const Where& where) {
    return out << "octavo::torch::" << where.optimizer << ": parameter " << where.index << " of group "
               << where.group << ": ";
  }
};

inline void check_param(const ::torch::Tensor& param, const Where& where) {
  TORCH_CHECK(param.defined(), where, "it is undefined, expected a tensor");
  TORCH_CHECK(param.layout() == ::torch::kStrided, where, param.layout(),
              " parameters are not supported, expected a dense tensor");
  TORCH_CHECK(native::dtype_number(param.scalar_type()) >= 0, where, c10::toString(param.scalar_type()),
              " parameters are not supported, expected Float, BFloat16 or Half");
  TORCH_CHECK(param.is_cpu() || param.is_cuda(), where, "parameters on ", param.device(),
              " are not supported, expected cpu or cuda");
  TORCH_CHECK(param.is_non_overlapping_and_dense(), where, "its memory has gaps (shape ", param.sizes(),
              ", strides ", param.strides(),
              "), expected a dense tensor; make it a parameter of its own with contiguous()");
}

inline void check_grad(const ::torch::Tensor& param, const ::torch::Tensor& grad, const Where& where) {
  TORCH_CHECK(grad.layout() == ::torch::kStrided, where,
              "sparse gradients are not supported; make the embedding with sparse(false)");
  TORCH_CHECK(grad.device() == param.device(), where, "its gradient is on ", grad.device(), ", expected ",
              param.device(), ", where the parameter is");
  TORCH_CHECK(grad.sizes() == param.sizes(), where, "its gradient has shape ", grad.sizes(), ", expected ",
              param.sizes());
  TORCH_CHECK(native::dtype_number(grad.scalar_type()) >= 0, where, c10::toString(grad.scalar_type()),
              " gradients are not supported, expected Float, BFloat16 or Half");
}

// The gradient in the memory order of the parameter; a copy where its order differs.
inline ::torch::Tensor in_memory_order(const ::torch::Tensor& grad, const ::torch::Tensor& param) {
  if (grad.strides() == param.strides() || (grad.is_contiguous() && param.is_contiguous())) return grad;
  return ::torch::empty_strided(param.sizes(), param.strides(), grad.options()).copy_(grad);
}

// The sizes from the slowest dimension to the fastest.
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

// Where a tensor is a part of a larger parameter.
struct Shard {
  std::int64_t offset = 0;       // its first element in the whole
  std::int64_t whole_numel = 0;  // 0: the tensor is the whole, or another rank has all of it
  std::uint32_t part = 0;        // not 0: other ranks have parts of its gradient; see set_norm_reduce
};

// What was set for one parameter alone.
struct Own {
  Shard shard;
  std::string format;  // empty: the group's options say
  std::int64_t block_size = 0;
};

// How one parameter is stepped: its description for the core, and the buffers that this takes.
struct Kind {
  octavo_tensor_spec spec;
  octavo_tensor_layout layout;
  std::string format;
  std::int64_t block_size;
  std::uint32_t algorithm;
  std::uint32_t switches;
};

inline std::uint32_t store_of(const ::torch::Tensor& param, const std::string& master, const Where& where) {
  if (master == "none" || master == "native" || param.scalar_type() == ::torch::kFloat32) {
    return 0;  // a float parameter is its own master
  }
  TORCH_CHECK(param.scalar_type() == ::torch::kBFloat16, where, "it is ", c10::toString(param.scalar_type()),
              ", and master \"", master,
              "\" needs BFloat16 (or Float, its own master); use master(\"none\")");
  return native::parse("store", master == "24" ? "bf16+8" : master == "32" ? "bf16+16" : master);
}

// A parameter for the core, without its format.
inline octavo_tensor_spec spec_of(const ::torch::Tensor& param, const Options& options, const Where& where) {
  octavo_tensor_spec spec = native::sized<octavo_tensor_spec>();
  spec.param_dtype = static_cast<std::uint32_t>(native::dtype_number(param.scalar_type()));
  spec.store = store_of(param, options.settings().master.value, where);
  spec.numel = param.numel();
  const at::DimVector shape = memory_shape(param);
  if (shape.size() <= std::size(spec.shape)) {  // more dimensions count as one: the core takes no more
    spec.ndim = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), spec.shape);
  }
  return spec;
}

// What is asked for, or what `state` (null: none yet) was made with.
inline Kind kind_of(const ::torch::Tensor& param, const Options& options, const Own& own,
                    const ParamState* state, const Where& where) {
  const Settings& settings = options.settings();
  Kind kind{spec_of(param, options, where),
            native::sized<octavo_tensor_layout>(),
            {},
            0,
            options.algorithm().info.number,
            options.switches()};
  if (state != nullptr && !state->format.empty()) {
    kind.format = state->format, kind.block_size = state->block_size;
    kind.spec.format = native::parse("state", kind.format);
  } else {
    const bool set = !own.format.empty();
    const std::uint32_t wanted = native::parse("state", set ? own.format : settings.state.value);
    const std::int64_t whole = own.shard.whole_numel == 0 ? param.numel() : own.shard.whole_numel;
    // A format that was set for this parameter counts whatever its size.
    native::check(octavo_format_for(wanted, whole, set ? 0 : settings.min_quantized_size.value,
                                    own.shard.whole_numel == 0 ? 0 : 1, &kind.spec.format),
                  where);
    const octavo_format_info info = native::format_info(kind.spec.format);
    kind.format = info.name;
    if (info.default_block > 0) kind.block_size = set ? own.block_size : settings.block_size.value;
  }
  kind.spec.block_size = kind.block_size;
  native::check(octavo_layout(kind.algorithm, kind.switches, &kind.spec, &kind.layout), where);
  return kind;
}

// The buffers of the first `numel` elements of such a parameter: where the state of a part begins, whose
// elements begin at a multiple of the block.
inline octavo_tensor_layout layout_of_first(const Kind& kind, std::int64_t numel) {
  if (numel == kind.spec.numel) return kind.layout;
  octavo_tensor_spec spec = kind.spec;
  spec.numel = numel, spec.ndim = 0;
  octavo_tensor_layout out = native::sized<octavo_tensor_layout>();
  native::check(octavo_layout(kind.algorithm, kind.switches, &spec, &out), "octavo: ");
  return out;
}

// Checks that the tensors of a state (loaded, or of a changed parameter) have the sizes needed now.
inline void check_state(const ParamState& state, const Kind& kind, const Where& where) {
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    if (!state.codes[slot].defined()) continue;
    const auto codes = static_cast<std::int64_t>(state.codes[slot].nbytes());
    const std::int64_t scales = state.scales[slot].defined() ? state.scales[slot].numel() : 0;
    TORCH_CHECK(codes == kind.layout.codes_bytes[slot] && scales == kind.layout.scales[slot], where, "its ",
                kind.format, " state has ", codes, " bytes and ", scales, " scales, expected ",
                kind.layout.codes_bytes[slot], " and ", kind.layout.scales[slot],
                "; parameters must keep their shape (or make a new optimizer)");
    TORCH_CHECK(state.codes[slot].is_contiguous() && (scales == 0 || state.scales[slot].is_contiguous()),
                where, "its state has gaps in memory, expected contiguous tensors");
  }
  if (!state.master.defined() || kind.layout.residual_bytes == 0) return;
  const auto master = static_cast<std::int64_t>(state.master.nbytes());
  TORCH_CHECK(master == kind.layout.residual_bytes, where, "its master has ", master, " bytes, expected ",
              kind.layout.residual_bytes,
              "; keep the parameter's shape and the option `master` that it was made with");
  TORCH_CHECK(state.master.is_contiguous(), where,
              "its master has gaps in memory, expected a contiguous tensor");
}

}  // namespace octavo::torch
