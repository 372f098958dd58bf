// Parameter groups, options, schedulers and bad input of the LibTorch adapter.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <limits>

namespace test {
namespace {

using octavo::torch::AdamW;
using octavo::torch::SGD;
using testing::HasSubstr;

template <class Options>
ParamGroup group_of(Tensors params, const Options& options) {
  return {std::move(params), std::make_unique<Options>(options)};
}

const AdamWOptions& options_of(const AdamW& optimizer, std::size_t group) {
  return static_cast<const AdamWOptions&>(optimizer.param_groups()[group].options());
}

// The allocator gives a new tensor the address of one that was freed. What was set for the one is not the
// other's.
TEST(TorchGroups, ANewTensorHasNoFormatOfAFreedOne) {
  constexpr std::int64_t kSize = 4096;
  AdamW optimizer({torch::zeros({kSize}).requires_grad_()},
                  AdamWOptions(1e-2).state("8bit").min_quantized_size(1));
  const auto param = [&]() -> torch::Tensor& { return optimizer.param_groups()[0].params()[0]; };
  for (int i = 0; i < 20; ++i) {
    optimizer.set_format(param(), "fp32");
    EXPECT_EQ(optimizer.kind_of(param()).format, "fp32");
    param() = torch::Tensor();
    param() = torch::zeros({kSize}).requires_grad_();
    optimizer.step();  // looks for new parameters
    EXPECT_EQ(optimizer.kind_of(param()).format, "8bit");
  }
}

// docs/guides/libtorch.md shows these lines.
TEST(TorchGroups, TheGuidesGroups) {
  torch::Tensor matrix = torch::ones({64, 128}), norm = torch::ones({128});
  const Tensors matrices = {matrix}, norms = {norm};
  for (torch::Tensor& each : Tensors{matrix, norm}) each.mutable_grad() = torch::full_like(each, 0.01);

  using octavo::torch::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<AdamWOptions>(AdamWOptions().state("4bit")));
  groups.emplace_back(norms, std::make_unique<AdamWOptions>(AdamWOptions().weight_decay(0)));
  octavo::torch::AdamW opt(groups,
                           AdamWOptions(1e-4).weight_decay(0.1).clip_grad_norm(1.0).skip_nonfinite(true));
  torch::optim::StepLR schedule(opt, 1000, 0.5);

  opt.step();
  EXPECT_EQ(opt.state_of(matrix)->format, "4bit");
  EXPECT_EQ(opt.state_of(norm)->format, "fp32");
  EXPECT_EQ(options_of(opt, 1).weight_decay(), 0.0);
  EXPECT_EQ(options_of(opt, 0).weight_decay(), 0.1);
}

// The former names of two options.
TEST(TorchGroups, FormerNamesStillWork) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const AdamWOptions options = AdamWOptions().max_grad_norm(0.5).guard(true);
  EXPECT_EQ(options.max_grad_norm(), 0.5);
  EXPECT_TRUE(options.guard());
#pragma GCC diagnostic pop
  EXPECT_EQ(options.clip_grad_norm(), 0.5);
  EXPECT_TRUE(options.skip_nonfinite());
}

TEST(TorchGroups, InheritWhatWasNotSet) {
  const Tensors params = make_params(), alone = copies({params[0]}), other = copies({params[1]});
  // 1e-2 is the default of the class; here it is set explicitly.
  AdamW optimizer(
      {group_of({params[0]}, AdamWOptions().weight_decay(1e-2).state("8bit")), ParamGroup({params[1]})},
      AdamWOptions(3e-2).weight_decay(0.5).betas({0.7, 0.9}));
  EXPECT_EQ(options_of(optimizer, 0).lr(), 3e-2);
  EXPECT_EQ(options_of(optimizer, 0).weight_decay(), 1e-2);
  EXPECT_EQ(options_of(optimizer, 0).state(), "8bit");
  EXPECT_EQ(options_of(optimizer, 1).weight_decay(), 0.5);
  EXPECT_EQ(options_of(optimizer, 1).state(), "fp32");

  AdamW first(alone, AdamWOptions(3e-2).weight_decay(1e-2).betas({0.7, 0.9}).state("8bit"));
  AdamW second(other, AdamWOptions(3e-2).weight_decay(0.5).betas({0.7, 0.9}));
  for (std::int64_t step = 1; step <= 4; ++step) {
    give_gradients(params, step);
    alone[0].mutable_grad() = params[0].grad();
    other[0].mutable_grad() = params[1].grad();
    optimizer.step();
    first.step();
    second.step();
  }
  EXPECT_TRUE(same_bits(params[0], alone[0]));
  EXPECT_TRUE(same_bits(params[1], other[0]));
}

TEST(TorchGroups, MayBeAddedLater) {
  const Tensors params = make_params(), before = copies(params);
  AdamW optimizer({params[0]}, AdamWOptions(1e-2).weight_decay(0.3));
  give_gradients(params, 1);
  optimizer.step();
  EXPECT_TRUE(same_bits(params[1], before[1]));
  torch::optim::Optimizer& as_torchs = optimizer;  // whose add_param_group is not virtual
  as_torchs.add_param_group(ParamGroup({params[1]}));
  optimizer.step();
  EXPECT_FALSE(same_bits(params[1], before[1]));
  EXPECT_EQ(options_of(optimizer, 1).weight_decay(), 0.3);
  EXPECT_EQ(optimizer.state_of(params[1])->step(), 1);
}

TEST(TorchGroups, SchedulersSetTheLearningRate) {
  const Tensors params = make_params(), by_hand = copies(params), theirs = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2)), reference(by_hand, AdamWOptions(1e-2));
  torch::optim::AdamW torchs(theirs, torch::optim::AdamWOptions(1e-2));
  torch::optim::StepLR scheduler(optimizer, 2, 0.5), its_scheduler(torchs, 2, 0.5);
  for (std::int64_t step = 1; step <= 8; ++step) {
    const double lr = torchs.param_groups()[0].options().get_lr();
    EXPECT_EQ(options_of(optimizer, 0).lr(), lr);
    static_cast<AdamWOptions&>(reference.param_groups()[0].options()).lr(lr);
    run(optimizer, params, step, step);
    run(reference, by_hand, step, step);
    scheduler.step();
    its_scheduler.step();
  }
  EXPECT_LT(options_of(optimizer, 0).lr(), 2e-3);
  EXPECT_TRUE(same_bits(params, by_hand));
}

TEST(TorchGroups, SmallParametersKeepFp32States) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2).state("8bit"));
  run(optimizer, params, 1, 1);
  EXPECT_EQ(optimizer.state_of(params[0])->format, "8bit");
  EXPECT_EQ(optimizer.state_of(params[1])->format, "fp32");
  const std::int64_t large = 70 * 61, blocks = (large + 255) / 256;
  EXPECT_EQ(optimizer.state_bytes(), 2 * (large + 4 * blocks) + 2 * 4 * 33);

  const Tensors again = make_params();
  AdamW all(again, AdamWOptions(1e-2).state("8bit").min_quantized_size(0).block_size(64));
  run(all, again, 1, 1);
  EXPECT_EQ(all.state_of(again[1])->format, "8bit");
  EXPECT_EQ(all.state_of(again[0])->scales[0].numel(), (large + 63) / 64);
}

TEST(TorchGroups, MasterBitsOfABf16ParameterAreThoseOfFp32) {
  const Tensors params = make_params(torch::kBFloat16), plain = copies(params);
  const Tensors wide = {params[0].detach().to(torch::kFloat32).requires_grad_()};
  AdamW optimizer({params[0]}, AdamWOptions(1e-4).master("32"));
  AdamW rounded({plain[0]}, AdamWOptions(1e-4)), reference(wide, AdamWOptions(1e-4));
  for (std::int64_t step = 1; step <= 10; ++step) {
    const torch::Tensor grad = gradient(params[0], step);
    params[0].mutable_grad() = plain[0].mutable_grad() = grad;
    wide[0].mutable_grad() = grad.to(torch::kFloat32);
    optimizer.step();
    rounded.step();
    reference.step();
  }
  EXPECT_TRUE(same_bits(params[0], wide[0].to(torch::kBFloat16)));
  EXPECT_FALSE(same_bits(plain[0], params[0]));
}

TEST(TorchBadInput, Options) {
  const Tensors params = make_params();
  const auto error = [&](const AdamWOptions& options) { return error_of([&] { AdamW(params, options); }); };
  EXPECT_THAT(error(AdamWOptions(-1)),
              HasSubstr("[adamw] lr: got -1, expected a finite number of at least 0"));
  EXPECT_THAT(error(AdamWOptions(std::numeric_limits<double>::quiet_NaN())), HasSubstr("lr: got nan"));
  EXPECT_THAT(error(AdamWOptions().betas({0.9, 1.0})),
              HasSubstr("beta2: got 1, expected at least 0 and below 1"));
  EXPECT_THAT(error(AdamWOptions().eps(-1)), HasSubstr("eps: got -1"));
  EXPECT_THAT(error(AdamWOptions().weight_decay(-1)), HasSubstr("weight_decay: got -1"));
  EXPECT_THAT(error(AdamWOptions().state("7bit")), HasSubstr("7bit"));
  EXPECT_THAT(error(AdamWOptions().state("8bit").block_size(100)), HasSubstr("100"));
  EXPECT_THAT(error(AdamWOptions().master("16")), HasSubstr("Invalid master: '16'"));
  EXPECT_THAT(error(AdamWOptions().min_quantized_size(-1)), HasSubstr("min_quantized_size"));
  EXPECT_THAT(error(AdamWOptions().clip_grad_norm(-1)), HasSubstr("clip_grad_norm"));
  EXPECT_THAT(error_of([&] { SGD(params, SGDOptions(0.1).nesterov(true)); }),
              HasSubstr("nesterov: got true"));
}

TEST(TorchBadInput, Groups) {
  const Tensors params = make_params();
  EXPECT_THAT(error_of([&] {
                AdamW({params[0], params[1], params[0]});
              }),
              HasSubstr("parameter 2 of group 0: it is there twice"));
  EXPECT_THAT(error_of([&] { AdamW({group_of({params[0]}, torch::optim::AdamWOptions(1e-3))}); }),
              HasSubstr("group 0 has options of another class, expected octavo::torch::AdamWOptions"));
  EXPECT_THAT(error_of([&] { AdamW({group_of({params[0]}, SGDOptions(1e-3))}); }),
              HasSubstr("another class"));
  EXPECT_THAT(error_of([&] { AdamW({group_of({params[0]}, AdamWOptions().clip_grad_norm(1))}); }),
              HasSubstr("clip_grad_norm is of the whole optimizer"));
  EXPECT_THAT(error_of([&] { AdamW({group_of({params[0]}, AdamWOptions().skip_nonfinite(true))}); }),
              HasSubstr("skip_nonfinite is of the whole optimizer"));
  EXPECT_THAT(error_of([&] { AdamW({params[0].to(torch::kFloat64).detach()}); }),
              HasSubstr("parameter 0 of group 0: Double parameters are not supported"));
  EXPECT_THAT(error_of([&] { AdamW({params[0].detach().narrow(1, 0, 8)}); }),
              HasSubstr("its memory has gaps"));
  EXPECT_THAT(error_of([&] { AdamW({params[0].detach().to(torch::kFloat16)}, AdamWOptions().master("24")); }),
              HasSubstr("master \"24\" needs BFloat16"));
  AdamW optimizer({params[0]});
  EXPECT_THAT(error_of([&] { optimizer.add_param_group(ParamGroup({params[0]})); }), HasSubstr("twice"));
  EXPECT_EQ(optimizer.param_groups().size(), 1U);
}

// Group 0 is fine. The error in group 1 must be found before anything is written.
void expect_refused(const std::function<void(AdamW&, const torch::Tensor&)>& spoil,
                    const std::string& message) {
  for (const std::int64_t earlier : {0, 2}) {
    const Tensors params = make_params();
    AdamW optimizer(std::vector<ParamGroup>{ParamGroup({params[0]}), ParamGroup({params[1]})},
                    AdamWOptions(1e-2).state("8bit"));
    run(optimizer, params, 1, earlier);
    give_gradients(params, 9);
    const Tensors before = copies(params), states_before = states(optimizer);
    spoil(optimizer, params[1]);
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr(message));
    EXPECT_TRUE(same_bits(params[0], before[0])) << message;
    EXPECT_TRUE(same_bits(states(optimizer), states_before)) << message;
    EXPECT_EQ(optimizer.state().size(), earlier == 0 ? 0U : 2U);
  }
}

TEST(TorchBadInput, LeavesEverythingUnchanged) {
  expect_refused(
      [](AdamW&, const torch::Tensor& p) { p.mutable_grad() = torch::zeros_like(p).detach().to_sparse(); },
      "octavo::torch::AdamW: parameter 0 of group 1: sparse gradients are not supported");
  expect_refused([](AdamW&, const torch::Tensor& p) { p.set_data(p.detach().to(torch::kFloat64)); },
                 "parameter 0 of group 1: Double parameters are not supported");
  expect_refused(
      [](AdamW&, const torch::Tensor& p) { p.mutable_grad() = torch::zeros({33}, torch::kFloat64); },
      "parameter 0 of group 1: Double gradients are not supported");
  expect_refused([](AdamW&, const torch::Tensor& p) { p.mutable_grad() = torch::zeros({3}); },
                 "parameter 0 of group 1: its gradient has shape [3], expected [33]");
  expect_refused(
      [](AdamW& o, const torch::Tensor&) {
        static_cast<AdamWOptions&>(o.param_groups()[1].options()).lr(-2);
      },
      "lr: got -2");
  expect_refused(
      [](AdamW& o, const torch::Tensor&) {
        static_cast<AdamWOptions&>(o.param_groups()[1].options()).eps(-2);
      },
      "eps: got -2");
}

TEST(TorchBadInput, ParametersThatChangeTheirSize) {
  const Tensors params = make_params();
  AdamW optimizer(params, AdamWOptions(1e-2));
  run(optimizer, params, 1, 1);
  params[1].set_data(torch::zeros({40}));
  params[1].mutable_grad() = torch::zeros({40});
  EXPECT_THAT(
      error_of([&] { optimizer.step(); }),
      HasSubstr("parameter 1 of group 0: its fp32 state has 132 bytes and 0 scales, expected 160 and 0"));
}

}  // namespace
}  // namespace test
