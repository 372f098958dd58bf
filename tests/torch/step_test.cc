// Steps of the LibTorch adapter: torch's numbers, the core's bits, and parameters and gradients that appear
// late, move, or have another memory order.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <octavo/backend.h>
#include <octavo/layout.h>
#include <octavo/engine.hpp>

#include <cmath>
#include <functional>
#include <limits>

namespace test {
namespace {

using octavo::torch::Adam;
using octavo::torch::AdamW;
using octavo::torch::Lion;
using octavo::torch::SGD;

// Both round a handful of times per step: the update to a few ulp of its size (at most about 10 lr), the
// parameter to half an ulp.
void expect_close(const Tensors& ours, const Tensors& theirs, double lr, double steps) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double largest = ours[i].abs().max().item<double>();
    const double bound = steps * 0x1p-24 * (largest + 8 * 10 * lr);
    EXPECT_LE((ours[i] - theirs[i]).abs().max().item<double>(), bound) << "parameter " << i;
    EXPECT_GT(ours[i].abs().sum().item<double>(), 0.0);
  }
}

void compare_with_torch(const std::function<std::unique_ptr<octavo::torch::Optimizer>(Tensors)>& make,
                        const std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>& make_torchs) {
  const Tensors params = make_params(), theirs = copies(params), before = copies(params);
  const auto ours = make(params);
  const auto reference = make_torchs(theirs);
  for (std::int64_t step = 1; step <= 20; ++step) {
    give_gradients(params, step);
    give_gradients(theirs, step);
    ours->step();
    reference->step();
  }
  EXPECT_FALSE(same_bits(params, before));
  expect_close(params, theirs, 1e-2, 20);
}

TEST(TorchParity, AdamW) {
  for (const bool amsgrad : {false, true}) {
    compare_with_torch(
        [&](Tensors p) {
          return std::make_unique<AdamW>(p, AdamWOptions(1e-2).weight_decay(0.1).amsgrad(amsgrad));
        },
        [&](Tensors p) {
          return std::make_unique<torch::optim::AdamW>(
              p, torch::optim::AdamWOptions(1e-2).weight_decay(0.1).amsgrad(amsgrad));
        });
  }
}

TEST(TorchParity, Adam) {
  compare_with_torch(
      [](Tensors p) {
        return std::make_unique<Adam>(p, AdamOptions(1e-2).weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6));
      },
      [](Tensors p) {
        return std::make_unique<torch::optim::Adam>(
            p, torch::optim::AdamOptions(1e-2).weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6));
      });
}

TEST(TorchParity, Sgd) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      compare_with_torch(
          [&](Tensors p) {
            return std::make_unique<SGD>(
                p, SGDOptions(1e-2).momentum(momentum).weight_decay(0.1).nesterov(nesterov));
          },
          [&](Tensors p) {
            return std::make_unique<torch::optim::SGD>(
                p, torch::optim::SGDOptions(1e-2).momentum(momentum).weight_decay(0.1).nesterov(nesterov));
          });
    }
  }
}

TEST(TorchStep, FirstStepOfEveryFormatIsThatOfFp32) {
  const Tensors start = make_params();
  const Tensors expected = copies(start);
  AdamW reference(expected, AdamWOptions(1e-2));
  run(reference, expected, 1, 1);
  for (const std::string& format : formats()) {
    const Tensors params = copies(start);
    AdamW optimizer(params, AdamWOptions(1e-2).state(format));
    run(optimizer, params, 1, 1);
    EXPECT_TRUE(same_bits(params, expected)) << format;
    EXPECT_EQ(optimizer.state_of(params[0])->format, format);
  }
}

// Takes the same steps with the core's engine, on copies.
TEST(TorchStep, SameBitsAsTheCore) {
  for (const std::string& format : formats()) {
    const Tensors params = make_params(torch::kBFloat16);
    const torch::Tensor weights = params[0].detach().clone();
    AdamW optimizer(params, AdamWOptions(1e-2).state(format).master("24").weight_decay(0.1).seed(5));

    octavo::TensorSpec spec;
    spec.numel = 70 * 61;
    spec.shape = {70, 61};
    spec.ndim = 2;
    spec.param_dtype = octavo::DType::bf16;
    spec.store = octavo::WeightStore::residual8;
    spec.format = octavo::parse_state_format(format).value();
    const octavo::TensorLayout need = octavo::layout({}, spec).value();
    std::vector<torch::Tensor> buffers;
    const auto zeros = [&](std::int64_t bytes) {
      buffers.push_back(torch::zeros({bytes + 1}, torch::kUInt8));
      return buffers.back().data_ptr();
    };
    std::int64_t count = 0;
    auto t = octavo::make<octavo_engine_tensor>();
    t.param_dtype = static_cast<std::uint32_t>(spec.param_dtype);
    t.store = static_cast<std::uint32_t>(spec.store);
    t.format = static_cast<std::uint32_t>(spec.format);
    t.numel = spec.numel;
    t.ndim = spec.ndim;
    std::copy(spec.shape.begin(), spec.shape.end(), t.shape);
    t.step = &count;
    t.param = weights.data_ptr();
    t.residual = zeros(need.residual_bytes);
    for (std::size_t slot = 0; slot < 2; ++slot) {
      t.codes[slot] = zeros(need.slot[slot].codes_bytes);
      if (need.slot[slot].scales > 0) t.scales[slot] = static_cast<float*>(zeros(4 * need.slot[slot].scales));
    }
    octavo::Engine engine("adamw");
    auto options = octavo::make<octavo_step_args>();
    options.lr = 1e-2, options.weight_decay = 0.1;
    options.seed = 5;
    engine.set_group(0, 0, options);
    const std::vector<std::uint32_t> handles = {0};
    engine.set(handles, std::vector<octavo_engine_tensor>{t});
    for (std::int64_t step = 1; step <= 4; ++step) {
      run(optimizer, params, step, step);
      const torch::Tensor grad = params[0].grad();
      engine.begin(handles, std::vector<const void*>{grad.data_ptr()}, std::vector<std::uint8_t>{1});
      auto device = octavo::make<octavo_engine_device>();
      device.workspace_bytes = engine.workspace_bytes(0, 0);
      const torch::Tensor workspace = torch::empty({device.workspace_bytes + 1}, torch::kUInt8);
      device.workspace = workspace.data_ptr();
      auto args = octavo::make<octavo_engine_args>();
      args.devices = &device;
      args.device_count = 1;
      engine.step(args);
      ASSERT_TRUE(same_bits(params[0], weights)) << format << ", step " << step;
    }
  }
}

TEST(TorchStep, LateGradientsStartFromStepOne) {
  for (const std::string& format : {std::string("fp32"), std::string("8bit")}) {
    const Tensors params = make_params();
    const Tensors alone = copies({params[0]}), early = copies({params[1]});
    AdamW optimizer(params, AdamWOptions(1e-2).state(format));
    AdamW for_late(alone, AdamWOptions(1e-2).state(format)),
        for_early(early, AdamWOptions(1e-2).state(format));
    for (std::int64_t step = 1; step <= 6; ++step) {
      params[1].mutable_grad() = early[0].mutable_grad() = gradient(params[1], step);
      params[0].mutable_grad() = alone[0].mutable_grad() =
          step == 1 || step == 4 ? torch::Tensor() : gradient(params[0], 100 + step);
      optimizer.step();
      for_late.step();
      for_early.step();
    }
    EXPECT_TRUE(same_bits(params[0], alone[0]));
    EXPECT_TRUE(same_bits(params[1], early[0]));
    EXPECT_EQ(optimizer.state_of(params[0])->step(), 4);
    EXPECT_EQ(optimizer.state_of(params[1])->step(), 6);
  }
}

TEST(TorchStep, FrozenParametersHaveNoState) {
  const Tensors params = make_params(), before = copies(params);
  params[0].requires_grad_(false);
  AdamW optimizer(params, AdamWOptions(1e-2));
  params[1].sum().backward();
  optimizer.step();
  EXPECT_TRUE(same_bits(params[0], before[0]));
  EXPECT_FALSE(same_bits(params[1], before[1]));
  EXPECT_EQ(optimizer.state_of(params[0]), nullptr);
  optimizer.zero_grad();
  optimizer.step();  // nothing to do
  EXPECT_EQ(optimizer.state_of(params[1])->step(), 1);
}

TEST(TorchStep, AParameterThatNeverRequiredAGradientHasNoHook) {
  for (const bool release : {false, true}) {
    const Tensors params = {torch::ones({3}), torch::ones({3}).requires_grad_()};
    AdamW optimizer(params, AdamWOptions(1e-2).gradient_release(release).offload("none"));
    params[1].sum().backward();
    optimizer.step();
    EXPECT_TRUE(params[0].eq(1).all().item<bool>());
    EXPECT_FALSE(params[1].eq(1).any().item<bool>());
  }
}

TEST(TorchStep, OptionsMayChange) {
  // Momentum that is switched on later begins with the gradient of its first step, as in torch.
  const Tensors params = make_params();
  SGD optimizer(params, SGDOptions(1e-2));
  run(optimizer, params, 1, 2);
  EXPECT_EQ(optimizer.state_bytes(), 0);
  const Tensors fresh = copies(params);
  static_cast<SGDOptions&>(optimizer.param_groups()[0].options()).momentum(0.9).dampening(0.5);
  SGD reference(fresh, SGDOptions(1e-2).momentum(0.9).dampening(0.5));
  run(optimizer, params, 3, 5);
  run(reference, fresh, 3, 5);
  EXPECT_TRUE(same_bits(params, fresh));

  // The guard moves the step count to the device and back.
  const Tensors guarded = make_params(), plain = make_params();
  AdamW on_and_off(guarded, AdamWOptions(1e-2)), never(plain, AdamWOptions(1e-2));
  for (std::int64_t step = 1; step <= 6; ++step) {
    static_cast<AdamWOptions&>(on_and_off.defaults()).skip_nonfinite(step == 3 || step == 4);
    run(on_and_off, guarded, step, step);
    run(never, plain, step, step);
  }
  EXPECT_TRUE(same_bits(guarded, plain));
  EXPECT_EQ(on_and_off.state_of(guarded[0])->step(), 6);
}

TEST(TorchStep, ParametersMayMove) {
  const Tensors params = make_params(), moving = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2).state("8bit")), other(moving, AdamWOptions(1e-2).state("8bit"));
  for (std::int64_t step = 1; step <= 3; ++step) {
    run(optimizer, params, step, step);
    for (const torch::Tensor& p : moving) p.set_data(p.detach().clone());
    run(other, moving, step, step);
  }
  EXPECT_TRUE(same_bits(params, moving));
}

TEST(TorchStep, MemoryOrders) {
  for (const std::string& format : {std::string("8bit"), std::string("4bit-rank1")}) {
    torch::manual_seed(3);
    const torch::Tensor flat = torch::randn({16, 12, 8, 6});  // as it lies in memory
    const Tensors straight = {flat.clone().requires_grad_()};
    const Tensors last = {flat.clone().permute({0, 3, 1, 2}).detach().requires_grad_()};
    ASSERT_FALSE(last[0].is_contiguous());
    AdamW a(straight, AdamWOptions(1e-2).state(format)), b(last, AdamWOptions(1e-2).state(format));
    for (std::int64_t step = 1; step <= 3; ++step) {
      const torch::Tensor grad = gradient(straight[0], step);
      straight[0].mutable_grad() = grad;
      // Once in the memory order of the parameter, once in another order.
      last[0].mutable_grad() =
          step == 2 ? grad.permute({0, 3, 1, 2}) : grad.permute({0, 3, 1, 2}).contiguous();
      a.step();
      b.step();
    }
    EXPECT_TRUE(same_bits(straight[0], last[0].permute({0, 2, 3, 1}))) << format;
  }
}

TEST(TorchStep, EmptyAndZeroDimensionalParameters) {
  const Tensors params = {torch::empty({0, 3}).requires_grad_(), torch::tensor(1.0F).requires_grad_()};
  Lion optimizer(params, LionOptions(0.5).state("4bit"));
  params[0].mutable_grad() = torch::empty({0, 3});
  params[1].mutable_grad() = torch::tensor(3.0F);
  optimizer.step();
  EXPECT_EQ(params[1].item<float>(), 0.5F);
}

TEST(TorchStep, ClosureAndVersions) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2));
  const auto version = params[0]._version();
  const torch::NoGradGuard no_grad;
  const torch::Tensor loss = optimizer.step([&] {
    const torch::Tensor out = params[0].square().sum();
    out.backward();
    return out;
  });
  EXPECT_GT(loss.item<float>(), 0.0F);
  EXPECT_GT(params[0]._version(), version) << "autograd must see that the parameter was written";
}

TEST(TorchClipping, ClipsTheNormOfAllGroupsInsideTheStep) {
  const Tensors params = make_params(), theirs = copies(params);
  SGD optimizer(std::vector<ParamGroup>{ParamGroup({params[0]}), ParamGroup({params[1]})},
                SGDOptions(1e-2).clip_grad_norm(0.5));
  torch::optim::SGD reference(theirs, torch::optim::SGDOptions(1e-2));
  give_gradients(params, 1);
  give_gradients(theirs, 1);
  const torch::Tensor kept = params[0].grad().clone();
  optimizer.step();
  const double norm = torch::nn::utils::clip_grad_norm_(theirs, 0.5);
  reference.step();
  EXPECT_NEAR(optimizer.grad_norm().item<double>(), norm, 1e-5 * norm);
  EXPECT_GT(norm, 10.0);
  EXPECT_TRUE(same_bits(params[0].grad(), kept)) << "gradients are not written";
  expect_close(params, theirs, 1e-2, 1);
}

TEST(TorchGuard, ABadGradientLeavesEverythingAsItIs) {
  const Tensors params = make_params(), clean = copies(params);
  const auto options = AdamWOptions(1e-2).state("8bit").skip_nonfinite(true);
  const std::vector<ParamGroup> groups = {ParamGroup({params[0]}), ParamGroup({params[1]})};
  AdamW optimizer(groups, options);
  AdamW reference(clean, AdamWOptions(1e-2).state("8bit"));
  run(optimizer, params, 1, 2);
  run(reference, clean, 1, 2);
  EXPECT_FALSE(optimizer.last_step_skipped());
  const Tensors before = states(optimizer);
  give_gradients(params, 3);
  params[1].mutable_grad()[5] = std::numeric_limits<float>::quiet_NaN();
  optimizer.step();
  EXPECT_TRUE(optimizer.last_step_skipped());
  EXPECT_TRUE(same_bits(params, clean));
  EXPECT_TRUE(same_bits(states(optimizer), before));
  run(optimizer, params, 4, 5);
  run(reference, clean, 4, 5);
  EXPECT_FALSE(optimizer.last_step_skipped());
  EXPECT_TRUE(same_bits(params, clean));
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 4);
}

TEST(TorchCuda, SameBitsAsTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";
  for (const std::string& format : formats()) {
    const Tensors params = make_params(torch::kBFloat16);
    Tensors there;
    for (const torch::Tensor& p : params) there.push_back(p.detach().to(torch::kCUDA).requires_grad_());
    const auto options =
        AdamWOptions(1e-2).state(format).master("24").clip_grad_norm(1.0).skip_nonfinite(true);
    AdamW here(params, options), on_gpu(there, options);
    for (std::int64_t step = 1; step <= 4; ++step) {
      give_gradients(params, step);
      for (std::size_t i = 0; i < params.size(); ++i)
        there[i].mutable_grad() = params[i].grad().to(torch::kCUDA);
      here.step();
      on_gpu.step();
    }
    EXPECT_TRUE(same_bits(params, there)) << format;
    EXPECT_TRUE(same_bits(states(here), states(on_gpu))) << format;
  }
}

}  // namespace
}  // namespace test
