// Computes subsample() with torch's operations, or with torch's matmuls and the kernels of
// train/nn/cuda/subsampling.h. The kernels save for the backward pass the features, the output of the first
// matmul, the input of the second matmul, and the output; the backward pass recomputes the input of the first
// matmul. The output of the first convolution, the largest activation, is never in memory.
// SPDX-License-Identifier: MIT
#include "train/nn/subsampling.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/cuda/subsampling.h"
#include "train/nn/fused.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <algorithm>

namespace octavo_train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kSubsample = "subsample";

// The parameters of a call, in the order of SubsamplingWeights.
enum : std::size_t {
  kFirst,
  kFirstBias,
  kDeep1,
  kDeep1Bias,
  kPoint1,
  kPoint1Bias,
  kDeep2,
  kDeep2Bias,
  kPoint2,
  kPoint2Bias,
  kParameters
};

cuda::StemShape shape_of(const at::Tensor& features, const variable_list& parameters) {
  return {is_bf16(features), features.size(0), features.size(1), features.size(2),
          parameters[kFirst].size(0)};
}

// Returns a weight [channels, 1, 3, 3] in the layout of the kernels, [9, channels].
at::Tensor taps(const at::Tensor& weight) { return kernel_parameter(weight.flatten(1).t()); }

// The parameters of the convolutions that are not matmuls, in the layout of the kernels.
struct Taps {
  at::Tensor first, first_bias, deep1, deep1_bias, deep2, deep2_bias;

  explicit Taps(const variable_list& parameters)
      : first(taps(parameters[kFirst])),
        first_bias(kernel_parameter(parameters[kFirstBias])),
        deep1(taps(parameters[kDeep1])),
        deep1_bias(kernel_parameter(parameters[kDeep1Bias])),
        deep2(taps(parameters[kDeep2])),
        deep2_bias(kernel_parameter(parameters[kDeep2Bias])) {}
  [[nodiscard]] cuda::StemFirst first_work(const at::Tensor& features, const at::Tensor& lengths) const {
    return {features.const_data_ptr(),     lengths.const_data_ptr<std::int64_t>(),
            first.const_data_ptr<float>(), first_bias.const_data_ptr<float>(),
            deep1.const_data_ptr<float>(), deep1_bias.const_data_ptr<float>()};
  }
  [[nodiscard]] cuda::StemSecond second_work(const at::Tensor& z, const at::Tensor& lengths) const {
    return {z.const_data_ptr(), lengths.const_data_ptr<std::int64_t>(), deep2.const_data_ptr<float>(),
            deep2_bias.const_data_ptr<float>()};
  }
};

// Returns an uninitialized tensor for the activations of a level, with one row per position.
at::Tensor level(const cuda::StemShape& shape, int number, const at::TensorOptions& options) {
  return at::empty({shape.rows_at(number), shape.channels}, options);
}

// Returns a weight [channels, channels, 1, 1] as a matrix for a matmul.
at::Tensor matrix(const at::Tensor& weight, at::ScalarType type) { return weight.flatten(1).to(type); }

at::Tensor product(const at::Tensor& y, const variable_list& parameters, std::size_t weight) {
  const at::ScalarType type = y.scalar_type();
  return at::addmm(parameters[weight + 1].to(type), y, matrix(parameters[weight], type).t());
}

// Returns the gradient of a matmul's weight. A batched matmul over parts of the rows computes it, because a
// single matmul with so many terms would leave most of a GPU idle. The parts are summed in fp32.
at::Tensor weight_gradient(const at::Tensor& dz, const at::Tensor& y, std::int64_t batch) {
  const std::int64_t rows = dz.size(0) / batch, cut = rows % 4 == 0 ? 4 : 1;
  const auto parts = [&](const at::Tensor& x) { return x.view({batch * cut, rows / cut, x.size(1)}); };
  return at::sum(at::bmm(parts(dz).mT(), parts(y)), {0}, false, at::kFloat);
}
at::Tensor bias_gradient(const at::Tensor& dz) { return at::sum(dz, {0}, false, at::kFloat); }

at::Tensor first_level(const cuda::StemShape& shape, const cuda::StemFirst& work, const at::Tensor& in,
                       const KernelScope& scope) {
  at::Tensor y = level(shape, 2, in.options());
  scope.run(kSubsample, {in, y},
            [&](auto stream) { return cuda::stem_first(shape, work, y.data_ptr(), stream); });
  return y;
}

struct SubsampleFunction : torch::autograd::Function<SubsampleFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& features, const at::Tensor& lengths,
                            const at::Tensor& first, const at::Tensor& first_bias, const at::Tensor& deep1,
                            const at::Tensor& deep1_bias, const at::Tensor& point1,
                            const at::Tensor& point1_bias, const at::Tensor& deep2,
                            const at::Tensor& deep2_bias, const at::Tensor& point2,
                            const at::Tensor& point2_bias) {
    const NoAutocast no_autocast;
    const variable_list parameters = {first,       first_bias, deep1,      deep1_bias, point1,
                                      point1_bias, deep2,      deep2_bias, point2,     point2_bias};
    const at::Tensor in = kernel_input(features), ends = lengths.contiguous();
    const cuda::StemShape shape = shape_of(in, parameters);
    const Taps kernels(parameters);
    const KernelScope scope(in);
    const at::Tensor z2 =
        product(first_level(shape, kernels.first_work(in, ends), in, scope), parameters, kPoint1);
    at::Tensor y3 = level(shape, 3, in.options());
    scope.run(kSubsample, {z2, y3}, [&](auto stream) {
      return cuda::stem_second(shape, kernels.second_work(z2, ends), y3.data_ptr(), stream);
    });
    const at::Tensor z3 = product(y3, parameters, kPoint2);
    at::Tensor out =
        at::empty({shape.batch, shape.frames_at(3), shape.channels * shape.bands_at(3)}, in.options());
    scope.run(kSubsample, {z3, out}, [&](auto stream) {
      return cuda::stem_last(shape, ends.const_data_ptr<std::int64_t>(), z3.const_data_ptr(), out.data_ptr(),
                             stream);
    });
    variable_list kept = parameters;
    kept.insert(kept.end(), {in, ends, z2, y3, out});
    context->save_for_backward(kept);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_gradient(kSubsample);
    const NoAutocast no_autocast;
    const variable_list saved = context->get_saved_variables();
    const variable_list parameters(saved.begin(), saved.begin() + kParameters);
    const at::Tensor &in = saved[kParameters], &ends = saved[kParameters + 1], &z2 = saved[kParameters + 2],
                     &y3 = saved[kParameters + 3], &out = saved[kParameters + 4];
    const cuda::StemShape shape = shape_of(in, parameters);
    const Taps kernels(parameters);
    const at::ScalarType type = in.scalar_type();
    const KernelScope scope(in);
    const at::Tensor dout = kernel_input(grads[0].to(type));
    const auto floats = in.options().dtype(at::kFloat);
    const at::Tensor partial = at::empty({cuda::stem_partial_size(shape)}, floats);
    variable_list gradients(2 + kParameters);  // the features and the lengths have no gradient
    const auto set = [&](std::size_t which, const at::Tensor& value) {
      gradients[2 + which] = value.view_as(parameters[which]).to(parameters[which].scalar_type());
    };

    at::Tensor dz3 = level(shape, 3, in.options());
    scope.run(kSubsample, {out, dout, dz3}, [&](auto stream) {
      return cuda::stem_last_backward(shape, out.const_data_ptr(), dout.const_data_ptr(), dz3.data_ptr(),
                                      stream);
    });
    set(kPoint2, weight_gradient(dz3, y3, shape.batch));
    set(kPoint2Bias, bias_gradient(dz3));
    const at::Tensor dy3 = at::mm(dz3, matrix(parameters[kPoint2], type));
    at::Tensor dz2 = level(shape, 2, in.options());
    const at::Tensor second = at::empty({10, shape.channels}, floats);
    scope.run(kSubsample, {z2, dy3, dz2, partial}, [&](auto stream) {
      return cuda::stem_second_backward(shape, kernels.second_work(z2, ends), dy3.const_data_ptr(),
                                        dz2.data_ptr(), second.data_ptr<float>(), partial.data_ptr<float>(),
                                        stream);
    });
    set(kDeep2, second.slice(0, 0, 9).t().contiguous());
    set(kDeep2Bias, second[9]);
    at::Tensor level2 = first_level(shape, kernels.first_work(in, ends), in, scope);
    set(kPoint1, weight_gradient(dz2, level2, shape.batch));
    set(kPoint1Bias, bias_gradient(dz2));
    at::mm_out(level2, dz2, matrix(parameters[kPoint1], type));  // level2 holds a gradient from here on
    dz2.reset();
    const at::Tensor sums = at::empty({20, shape.channels}, floats);
    scope.run(kSubsample, {in, level2, partial}, [&](auto stream) {
      return cuda::stem_first_backward(shape, kernels.first_work(in, ends), level2.const_data_ptr(),
                                       sums.data_ptr<float>(), partial.data_ptr<float>(), stream);
    });
    set(kFirst, sums.slice(0, 0, 9).t().contiguous());
    set(kFirstBias, sums[9]);
    set(kDeep1, sums.slice(0, 10, 19).t().contiguous());
    set(kDeep1Bias, sums[19]);
    return gradients;
  }
};

bool subsampling_is_fusible(const at::Tensor& features, const SubsamplingWeights& weights) {
  const std::int64_t channels = weights.first.size(0);
  const auto fits = [&](const at::Tensor& weight, std::int64_t width) {
    return weight.device() == features.device() && weight.size(2) == width && weight.size(3) == width;
  };
  const auto stage_fits = [&](const SubsamplingWeights::Stage& stage) {
    return fits(stage.depthwise, 3) && fits(stage.pointwise, 1);
  };
  return has_kernel_type(features) && !features.requires_grad() && features.size(2) <= cuda::kMostBands &&
         channels % 8 == 0 && fits(weights.first, 3) &&
         std::all_of(weights.stages.begin(), weights.stages.end(), stage_fits);
}

torch::Tensor masked(const torch::Tensor& x, const torch::Tensor& lengths) {
  return x * length_mask(lengths, x.size(2)).unsqueeze(1).unsqueeze(3).to(x.scalar_type());
}

}  // namespace

torch::Tensor subsample(const torch::Tensor& features, const torch::Tensor& lengths,
                        const SubsamplingWeights& weights) {
  TORCH_CHECK(features.dim() == 3, "subsample: features are ", features.sizes(),
              ", expected [batch, T, bands]");
  check_lengths(kSubsample, lengths, features);
  if (subsampling_is_fusible(features, weights)) {
    const auto& [one, two] = weights.stages;
    return SubsampleFunction::apply(features, lengths, weights.first, weights.first_bias, one.depthwise,
                                    one.depthwise_bias, one.pointwise, one.pointwise_bias, two.depthwise,
                                    two.depthwise_bias, two.pointwise, two.pointwise_bias);
  }
  const NoAutocast no_autocast;
  torch::Tensor x = features.unsqueeze(1), left = lengths;
  const auto convolved = [&](const torch::Tensor& weight, const torch::Tensor& bias) {
    const std::int64_t stride = weight.size(2) == 1 ? 1 : 2, groups = x.size(1) / weight.size(1);
    x = torch::conv2d(masked(x, left), weight.to(x.scalar_type()), bias.to(x.scalar_type()), stride,
                      weight.size(2) / 2, 1, groups);
    if (stride == 2) left = (left + 1).div(2, "floor");
  };
  convolved(weights.first, weights.first_bias);
  x = x.relu();
  for (const SubsamplingWeights::Stage& stage : weights.stages) {
    convolved(stage.depthwise, stage.depthwise_bias);
    convolved(stage.pointwise, stage.pointwise_bias);
    x = x.relu();
  }
  return masked(x, left).transpose(1, 2).flatten(2);  // order within a frame: channel, then band
}

}  // namespace octavo_train
