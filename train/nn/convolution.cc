// Computes conv_module() with torch's operations, or with the kernels of train/nn/cuda/convolution.h. The
// kernels save for the backward pass z, the output y of the depthwise convolution, and the statistics.
// SPDX-License-Identifier: MIT
#include "train/nn/convolution.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/cuda/convolution.h"
#include "train/nn/fused.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

namespace octavo_train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

cuda::ConvShape conv_shape(const at::Tensor& z) { return {is_bf16(z), z.size(0), z.size(1), z.size(2) / 2}; }

struct ConvModuleFunction : torch::autograd::Function<ConvModuleFunction> {
  // REQUIRES: conv_is_fusible(). `frozen`: the running statistics are used instead of this batch's.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& z, const at::Tensor& weight,
                            const at::Tensor& gamma, const at::Tensor& beta, const at::Tensor& lengths,
                            const BatchNorm* norm, bool frozen) {
    const at::Tensor in = kernel_input(z), kernel = kernel_parameter(weight), ends = lengths.contiguous();
    const at::Tensor scale = kernel_parameter(gamma), shift = kernel_parameter(beta);
    const cuda::ConvShape shape = conv_shape(in);
    const at::Tensor y = at::empty({shape.batch, shape.frames, shape.channels}, in.options());
    const at::Tensor statistics = at::empty({2, shape.channels}, kernel.options());
    const at::Tensor partial = at::empty({cuda::conv_partial_size(shape)}, kernel.options());
    const at::Tensor out = at::empty_like(y);
    const at::Tensor& batches = norm->num_batches_tracked;
    const cuda::ConvNorm how{scale.const_data_ptr<float>(),
                             shift.const_data_ptr<float>(),
                             norm->running_mean.data_ptr<float>(),
                             norm->running_var.data_ptr<float>(),
                             batches.defined() ? batches.data_ptr<std::int64_t>() : nullptr,
                             norm->momentum,
                             norm->eps,
                             frozen};
    const KernelScope scope(in);
    scope.run("conv_module", {in, y, partial}, [&](auto stream) {
      return cuda::conv_mix(shape, in.const_data_ptr(), ends.const_data_ptr<std::int64_t>(),
                            kernel.const_data_ptr<float>(), how, y.data_ptr(), statistics.data_ptr<float>(),
                            partial.data_ptr<float>(), stream);
    });
    scope.run("conv_module", {y, out}, [&](auto stream) {
      return cuda::conv_normalise(shape, y.const_data_ptr(), statistics.const_data_ptr<float>(), how,
                                  out.data_ptr(), stream);
    });
    context->save_for_backward({in, kernel, scale, shift, ends, y, statistics});
    context->saved_data["frozen"] = frozen;
    context->saved_data["weight"] = weight.scalar_type();
    context->saved_data["norm"] = gamma.scalar_type();
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_gradient("conv_module");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &z = saved[0], &kernel = saved[1], &y = saved[5], &statistics = saved[6];
    const cuda::ConvShape shape = conv_shape(z);
    const at::Tensor dout = kernel_input(grads[0].to(z.scalar_type()));
    const at::Tensor dz = at::empty_like(z), dkernel = at::empty_like(kernel);
    const at::Tensor dnorm = at::empty_like(statistics), means = at::empty_like(statistics);
    const at::Tensor partial = at::empty({cuda::conv_partial_size(shape)}, kernel.options());
    cuda::ConvNorm how{};
    how.weight = saved[2].const_data_ptr<float>();
    how.bias = saved[3].const_data_ptr<float>();
    how.frozen = context->saved_data["frozen"].toBool();
    const KernelScope scope(z);
    // dout and y are read twice: for the norm's sums, and for the gradients.
    scope.run("conv_module", {dout, y, dout, y, z, dz, partial}, [&](auto stream) {
      return cuda::conv_backward(shape, dout.const_data_ptr(), z.const_data_ptr(), y.const_data_ptr(),
                                 saved[4].const_data_ptr<std::int64_t>(), kernel.const_data_ptr<float>(),
                                 statistics.const_data_ptr<float>(), how, dz.data_ptr(),
                                 dkernel.data_ptr<float>(), dnorm.data_ptr<float>(), means.data_ptr<float>(),
                                 partial.data_ptr<float>(), stream);
    });
    const at::ScalarType norm_type = context->saved_data["norm"].toScalarType();
    return {dz,
            dkernel.to(context->saved_data["weight"].toScalarType()),
            dnorm[1].to(norm_type),
            dnorm[0].to(norm_type),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

bool conv_is_fusible(const at::Tensor& z, const at::Tensor& weight, const BatchNorm& norm) {
  const auto statistics = [&](const at::Tensor& t) {
    return t.scalar_type() == at::kFloat && t.device() == z.device() && t.is_contiguous();
  };
  return fusible(z) && z.size(2) % 16 == 0 && weight.size(2) == cuda::kConvWidth &&
         weight.device() == z.device() && norm.weight.device() == z.device() &&
         statistics(norm.running_mean) && statistics(norm.running_var) &&
         (!norm.num_batches_tracked.defined() || norm.num_batches_tracked.device() == z.device());
}

}  // namespace

torch::Tensor conv_module(const torch::Tensor& z, const torch::Tensor& lengths, const torch::Tensor& weight,
                          BatchNorm& norm, bool training) {
  const std::int64_t channels = weight.size(0), width = weight.size(2);
  TORCH_CHECK(z.dim() == 3 && z.size(2) == 2 * channels, "conv_module: activations are ", z.sizes(),
              ", expected [batch, T, ", 2 * channels, ']');
  TORCH_CHECK(width % 2 == 1, "conv_module: the kernel's width is ", width, ", expected an odd number");
  if (conv_is_fusible(z, weight, norm)) {
    check_lengths("conv_module", lengths, z);
    return ConvModuleFunction::apply(z, weight, norm.weight, norm.bias, lengths, &norm,
                                     !training || norm.frozen);
  }
  const NoAutocast no_autocast;
  const auto type = accumulation_type(z);
  const torch::Tensor gated =
      torch::glu(z.to(type), 2) * length_mask(lengths, z.size(1)).unsqueeze(2).to(type);
  const torch::Tensor mixed = torch::conv1d(gated.mT(), weight.to(type), {}, 1, (width - 1) / 2, 1,
                                            channels);  // [batch, channels, T]
  const bool update = training && !norm.frozen;
  const bool single = update && z.size(0) * z.size(1) == 1;  // torch would divide its variance by zero
  if (update) {
    const torch::NoGradGuard no_grad;
    norm.num_batches_tracked.add_(1);
    if (single) {
      norm.running_mean.lerp_(mixed.flatten().to(norm.running_mean.scalar_type()), norm.momentum);
      norm.running_var.mul_(1 - norm.momentum);
    }
  }
  const auto as = [&](const torch::Tensor& t) { return t.to(type); };
  const auto running = [&](const torch::Tensor& t) { return single ? torch::Tensor() : t; };
  const torch::Tensor normed =
      torch::batch_norm(mixed, as(norm.weight), as(norm.bias), running(norm.running_mean),
                        running(norm.running_var), update, norm.momentum, norm.eps, false);
  return torch::silu(normed).mT().contiguous().to(z.scalar_type());
}

}  // namespace octavo_train
