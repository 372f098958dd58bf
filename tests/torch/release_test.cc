// Gradient release of the LibTorch adapter: parameters are stepped in the backward pass, and their gradients
// are freed.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <octavo/backend.h>

#include <cmath>
#include <limits>

namespace test {
namespace {

using octavo::torch::AdamW;
using octavo::torch::SGD;
using testing::HasSubstr;

TEST(TorchRelease, StepsInTheBackwardPass) {
  for (const std::string& format : formats()) {
    const Tensors params = make_params(), plain = copies(params);
    const auto options = AdamWOptions(1e-2).state(format);
    AdamW optimizer(params, AdamWOptions(options).gradient_release(true)), reference(plain, options);
    for (std::int64_t step = 1; step <= 3; ++step) {
      loss_of(params, step).backward();
      loss_of(plain, step).backward();
      EXPECT_FALSE(params[0].grad().defined()) << "freed as soon as it is used";
      reference.step();
      EXPECT_TRUE(same_bits(params, plain)) << format << ": stepped before step(), step " << step;
      optimizer.step();
      EXPECT_TRUE(same_bits(params, plain)) << "and not again";
      reference.zero_grad();
    }
    EXPECT_TRUE(same_bits(states(optimizer), states(reference))) << format;
  }
}

TEST(TorchCuda, GradientReleaseHasTheBitsOfTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";
  const Tensors params = make_params();
  Tensors there;
  for (const torch::Tensor& p : params) there.push_back(p.detach().to(torch::kCUDA).requires_grad_());
  const auto options =
      AdamWOptions(1e-2).state("8bit").skip_nonfinite(true).clip_grad_norm(0.5).gradient_release(true);
  AdamW optimizer(params, options), on_gpu(there, options);
  for (std::int64_t step = 1; step <= 4; ++step) {
    for (std::size_t i = 0; i < params.size(); ++i) {  // gradients that are the same in bits
      torch::Tensor grad = gradient(params[i], 10 * step + static_cast<std::int64_t>(i));
      if (step == 3 && i == 1) grad[5] = std::numeric_limits<float>::infinity();
      (params[i] * grad).sum().backward();
      (there[i] * grad.to(torch::kCUDA)).sum().backward();
    }
    EXPECT_FALSE(there[0].grad().defined());
    optimizer.step();
    on_gpu.step();
    EXPECT_EQ(on_gpu.last_step_skipped(), step == 3);
    EXPECT_TRUE(same_bits(optimizer.grad_norm(), on_gpu.grad_norm())) << step;
  }
  EXPECT_TRUE(same_bits(params, there));
  EXPECT_TRUE(same_bits(states(optimizer), states(on_gpu)));
}

TEST(TorchRelease, ClipsByThePreviousStepsNorm) {
  const Tensors params = make_params(), before = copies(params);
  SGD optimizer(params, SGDOptions(1e-2).clip_grad_norm(0.5).gradient_release(true));
  const auto expect_factor = [&](std::int64_t step, double factor) {
    const Tensors start = copies(params);
    loss_of(params, step).backward();
    optimizer.step();
    const torch::Tensor moved = (start[0] - params[0]) / 1e-2;
    const torch::Tensor grad = gradient(params[0], 10 * step);
    EXPECT_LT((moved - factor * grad).abs().max().item<double>(), 1e-4) << step;
  };
  expect_factor(1, 1.0);  // nothing is known yet
  const double norm = optimizer.grad_norm().item<double>();
  const double squares = gradient(before[0], 10).square().sum().item<double>() +
                         gradient(before[1], 11).square().sum().item<double>();
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-4);
  expect_factor(2, 0.5 / norm);
  EXPECT_NE(optimizer.grad_norm().item<double>(), norm);
}

TEST(TorchRelease, TheGuardWorksPerParameter) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2).skip_nonfinite(true).gradient_release(true));
  loss_of(params, 1).backward();
  optimizer.step();
  EXPECT_FALSE(optimizer.last_step_skipped());
  const Tensors start = copies(params);
  (params[0].sum() + std::numeric_limits<float>::quiet_NaN() * params[1].sum()).backward();
  optimizer.step();
  EXPECT_TRUE(optimizer.last_step_skipped());
  EXPECT_TRUE(same_bits(params[1], start[1]));
  EXPECT_FALSE(same_bits(params[0], start[0]));
  EXPECT_EQ(optimizer.state_of(params[1])->step(), 1);
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 2);
  loss_of(params, 3).backward();
  optimizer.step();
  EXPECT_FALSE(optimizer.last_step_skipped());
}

TEST(TorchRelease, OneBackwardPassPerStep) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2).gradient_release(true));
  loss_of(params, 1).backward();
  const Tensors start = copies(params);
  EXPECT_THAT(error_of([&] { loss_of(params, 2).backward(); }),
              AllOf(HasSubstr("octavo::torch::AdamW: parameter "), HasSubstr("a second time")));
  EXPECT_TRUE(same_bits(params, start));
  optimizer.step();
  EXPECT_EQ(error_of([&] { loss_of(params, 2).backward(); }), "no error");
}

// A parameter that the optimizer does not have any more is freed, and a hook of another optimizer may follow.
TEST(TorchRelease, AReplacedParameterIsFreed) {
  Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2).gradient_release(true));
  loss_of(params, 1).backward();
  optimizer.step();
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> first(params[0].getIntrusivePtr());
  const torch::Tensor second = params[1];
  params = make_params();
  optimizer.param_groups()[0].params() = params;
  loss_of(params, 2).backward();
  optimizer.step();
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(torch::autograd::impl::post_acc_grad_hooks(second), nullptr);
  EXPECT_NE(torch::autograd::impl::post_acc_grad_hooks(params[0]), nullptr);
}

TEST(TorchRelease, LateAndMovedAndGone) {
  const Tensors params = make_params(), plain = copies(params);
  AdamW reference(plain, AdamWOptions(1e-2));
  {
    AdamW first({params[0]}, AdamWOptions(1e-2).gradient_release(true));
    AdamW optimizer(std::move(first));
    optimizer.add_param_group(ParamGroup({params[1]}));
    loss_of(params, 1).backward();
    optimizer.step();
    // A gradient that no backward pass made is used by step().
    params[0].mutable_grad() = gradient(params[0], 20);
    optimizer.step();
    EXPECT_THAT(error_of([&] { AdamW(params, AdamWOptions().gradient_release(true)); }),
                HasSubstr("a parameter has a post-accumulate-grad hook already"));
  }
  run(reference, plain, 1, 1);
  reference.zero_grad();
  plain[0].mutable_grad() = gradient(plain[0], 20);
  reference.step();
  EXPECT_TRUE(same_bits(params, plain));
  loss_of(params, 3).backward();
  EXPECT_TRUE(same_bits(params, plain)) << "no hook outlives its optimizer";
  EXPECT_TRUE(params[0].grad().defined());
}

}  // namespace
}  // namespace test
