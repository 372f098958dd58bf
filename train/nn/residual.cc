// Computes layer_norm(), add_norm() and silu_dropout() with torch's operations, or with the kernels of
// train/nn/cuda/residual.h. The kernels save for the backward pass the sum s and two numbers for each row;
// the input of silu_dropout. The backward pass recomputes masks.
// SPDX-License-Identifier: MIT
#include "train/nn/residual.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/cuda/residual.h"
#include "train/nn/fused.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

namespace octavo_train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using MaskPointer = c10::intrusive_ptr<KernelMask>;

MaskPointer kept_mask(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<KernelMask>(context->saved_data["mask"].toCapsule());
}

cuda::NormShape norm_shape(const at::Tensor& x) {
  const std::int64_t channels = x.size(-1), rows = x.numel() / channels;
  return {is_bf16(x), rows, rows / x.size(0), channels};
}

// Enqueues the forward pass. `y` may be undefined: then s is x and `sum` is not written.
void run_norm(const at::Tensor& x, const at::Tensor& y, double scale, const KernelMask& mask,
              const at::Tensor& weight, const at::Tensor& bias, double eps, const at::Tensor& sum,
              const at::Tensor& out, const at::Tensor& statistics) {
  const KernelScope scope(x);
  scope.run("add_norm", {x, y, sum, out, statistics}, [&](auto stream) {
    return cuda::norm_forward(
        norm_shape(x),
        {x.const_data_ptr(), y.defined() ? y.const_data_ptr() : nullptr, scale, mask.call,
         weight.const_data_ptr<float>(), bias.const_data_ptr<float>(), eps,
         sum.defined() ? sum.data_ptr() : nullptr, out.data_ptr(), statistics.data_ptr<float>()},
        stream);
  });
}

struct NormGradients {
  at::Tensor dx, dy, dweight, dbias;
};
// Enqueues the backward pass. `ds` may be undefined. dy is computed only if `with_y` is true.
NormGradients norm_gradients(const at::Tensor& ds, const at::Tensor& dout, const at::Tensor& s,
                             const at::Tensor& weight, const at::Tensor& statistics, double scale,
                             const KernelMask& mask, bool with_y) {
  const cuda::NormShape shape = norm_shape(s);
  const at::Tensor add = ds.defined() ? kernel_input(ds.to(s.scalar_type())) : at::Tensor();
  const at::Tensor from = kernel_input(dout.to(s.scalar_type()));
  const at::Tensor partial = at::empty({cuda::norm_partial_size(shape)}, weight.options());
  const at::Tensor dnorm = at::empty({2, shape.channels}, weight.options());
  NormGradients out{at::empty_like(s), with_y ? at::empty_like(s) : at::Tensor(), dnorm[1], dnorm[0]};
  const KernelScope scope(s);
  scope.run("add_norm", {add, from, s, out.dx, out.dy, partial}, [&](auto stream) {
    return cuda::norm_backward(
        shape,
        {add.defined() ? add.const_data_ptr() : nullptr, from.const_data_ptr(), s.const_data_ptr(), scale,
         mask.call, weight.const_data_ptr<float>(), statistics.const_data_ptr<float>(), out.dx.data_ptr(),
         with_y ? out.dy.data_ptr() : nullptr, dnorm.data_ptr<float>(), partial.data_ptr<float>()},
        stream);
  });
  return out;
}

at::Tensor row_statistics(const at::Tensor& x, const at::Tensor& weight) {
  return at::empty({x.numel() / x.size(-1), 2}, weight.options());
}

struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps) {
    const at::Tensor in = kernel_input(x), scale = kernel_parameter(weight), shift = kernel_parameter(bias);
    const at::Tensor out = at::empty_like(in), statistics = row_statistics(in, scale);
    run_norm(in, {}, 0.0, KernelMask(), scale, shift, eps, {}, out, statistics);
    context->save_for_backward({in, scale, statistics});
    context->saved_data["type"] = weight.scalar_type();
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_gradient("layer_norm");
    const variable_list saved = context->get_saved_variables();
    const at::ScalarType type = context->saved_data["type"].toScalarType();
    const NormGradients out =
        norm_gradients({}, grads[0], saved[0], saved[1], saved[2], 0.0, KernelMask(), false);
    return {out.dx, out.dweight.to(type), out.dbias.to(type), at::Tensor()};
  }
};

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& weight, const at::Tensor& bias, double factor, double eps,
                               const MaskPointer& mask) {
    const at::Tensor in = kernel_input(x), beside = kernel_input(y);
    const at::Tensor scale = kernel_parameter(weight), shift = kernel_parameter(bias);
    const at::Tensor sum = at::empty_like(in), out = at::empty_like(in);
    const at::Tensor statistics = row_statistics(in, scale);
    run_norm(in, beside, factor, *mask, scale, shift, eps, sum, out, statistics);
    context->save_for_backward({sum, scale, statistics});
    context->set_materialize_grads(false);
    context->saved_data["mask"] = c10::IValue::make_capsule(mask);
    context->saved_data["factor"] = factor;
    context->saved_data["type"] = weight.scalar_type();
    return {sum, out};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_gradient("add_norm");
    variable_list none(7);
    if (!grads[0].defined() && !grads[1].defined()) return none;
    const variable_list saved = context->get_saved_variables();
    const at::ScalarType type = context->saved_data["type"].toScalarType();
    const at::Tensor dout = grads[1].defined() ? grads[1] : at::zeros_like(saved[0]);
    const NormGradients out =
        norm_gradients(grads[0], dout, saved[0], saved[1], saved[2], context->saved_data["factor"].toDouble(),
                       *kept_mask(context), true);
    none[0] = out.dx;
    none[1] = out.dy;
    none[2] = out.dweight.to(type);
    none[3] = out.dbias.to(type);
    return none;
  }
};

// Enqueues silu_dropout: the forward pass, or the backward pass if `dout` is defined.
at::Tensor run_silu(const at::Tensor& x, const at::Tensor& dout, const KernelMask& mask) {
  at::Tensor out = at::empty_like(x);
  const KernelScope scope(x);
  scope.run("silu_dropout", {x, dout, out}, [&](auto stream) {
    return cuda::silu_dropout(is_bf16(x), x.numel(), x.numel() / x.size(0), x.const_data_ptr(),
                              dout.defined() ? dout.const_data_ptr() : nullptr, mask.call, out.data_ptr(),
                              stream);
  });
  return out;
}

struct SiluDropoutFunction : torch::autograd::Function<SiluDropoutFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const MaskPointer& mask) {
    const at::Tensor in = kernel_input(x);
    context->save_for_backward({in});
    context->saved_data["mask"] = c10::IValue::make_capsule(mask);
    return run_silu(in, {}, *mask);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_gradient("silu_dropout");
    const at::Tensor in = context->get_saved_variables()[0];
    return {run_silu(in, kernel_input(grads[0].to(in.scalar_type())), *kept_mask(context)), at::Tensor()};
  }
};

bool norm_is_fusible(const at::Tensor& x, const at::Tensor& weight) {
  return fusible(x) && x.size(-1) <= cuda::kMostNormed && weight.device() == x.device();
}

}  // namespace

torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                         double eps) {
  if (norm_is_fusible(x, weight)) return LayerNormFunction::apply(x, weight, bias, eps);
  const NoAutocast no_autocast;
  const auto type = accumulation_type(x);
  return torch::layer_norm(x.to(type), {x.size(-1)}, weight.to(type), bias.to(type), eps).to(x.scalar_type());
}

std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& y, double scale,
                                                 const torch::Tensor& weight, const torch::Tensor& bias,
                                                 double eps, const Drop& drop) {
  if (norm_is_fusible(x, weight) && y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type()) {
    const variable_list out =
        AddNormFunction::apply(x, y, weight, bias, scale, eps, c10::make_intrusive<KernelMask>(y, drop));
    return {out[0], out[1]};
  }
  const NoAutocast no_autocast;
  const torch::Tensor sum = torch::add(x, dropout(y, drop), scale);
  return {sum, layer_norm(sum, weight, bias, eps)};
}

torch::Tensor silu_dropout(const torch::Tensor& x, const Drop& drop) {
  if (fusible(x)) return SiluDropoutFunction::apply(x, c10::make_intrusive<KernelMask>(x, drop));
  return dropout(torch::silu(x), drop);
}

}  // namespace octavo_train
