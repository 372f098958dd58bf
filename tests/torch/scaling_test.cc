// Loss scaling, steps that are left out, states that are handed over, and working memory of the LibTorch
// adapter: what a training loop of one's own asks for.
// SPDX-License-Identifier: MIT
#include "torch/support.h"

#include <octavo/optimizer.h>

#include <algorithm>
#include <limits>
#include <memory>

namespace test {
namespace {

using octavo::torch::AdamW;
using octavo::torch::Lion;
using octavo::torch::ParamState;
using octavo::torch::SGD;
using testing::AllOf;
using testing::HasSubstr;

torch::Tensor scale_of(double value) { return torch::full({1}, value, torch::kFloat32); }

void scale_gradients(const Tensors& params, double factor) {
  for (const torch::Tensor& p : params) p.mutable_grad().mul_(factor);
}

// A power of two changes no bit of a product: scaled gradients with their scale are the plain ones.
template <class Class, class Options>
void expect_same_bits(const Options& options, torch::ScalarType type) {
  const Tensors plain = make_params(type), scaled = copies(plain);
  Class reference(plain, options), optimizer(scaled, options);
  optimizer.set_loss_scale(scale_of(1024));
  for (std::int64_t step = 1; step <= 4; ++step) {
    give_gradients(plain, step);
    give_gradients(scaled, step);
    scale_gradients(scaled, 1024);
    const torch::Tensor kept = scaled[0].grad().clone();
    reference.step();
    optimizer.step();
    EXPECT_TRUE(same_bits(scaled[0].grad(), kept)) << "gradients are not written";
    const torch::Tensor norm = reference.grad_norm(), scaled_norm = optimizer.grad_norm();
    if (norm.defined()) {
      EXPECT_TRUE(torch::equal(scaled_norm, 1024 * norm)) << "of the gradients as they lie there";
    }
  }
  EXPECT_TRUE(same_bits(scaled, plain)) << options.state();
  EXPECT_TRUE(same_bits(states(optimizer), states(reference))) << options.state();
}

TEST(TorchLossScale, IsTakenOutInsideTheStep) {
  for (const std::string& format : formats()) {
    const auto options = AdamWOptions(1e-2).state(format).seed(3);
    expect_same_bits<AdamW>(options, torch::kFloat32);
    expect_same_bits<AdamW>(AdamWOptions(options).max_grad_norm(0.5), torch::kFloat32);
    expect_same_bits<AdamW>(AdamWOptions(options).master("24").max_grad_norm(0.5).guard(true),
                            torch::kBFloat16);
  }
  expect_same_bits<SGD>(SGDOptions(1e-2).momentum(0.9).max_grad_norm(0.5), torch::kFloat32);
  expect_same_bits<SGD>(SGDOptions(1e-2), torch::kFloat32);
  expect_same_bits<Lion>(LionOptions(1e-2).state("8bit"), torch::kFloat32);
}

TEST(TorchLossScale, IsReadAtEveryStepAndMayEnd) {
  const Tensors plain = make_params(), scaled = copies(plain);
  SGD reference(plain, SGDOptions(1e-2).max_grad_norm(0.5)),
      optimizer(scaled, SGDOptions(1e-2).max_grad_norm(0.5));
  const torch::Tensor scale = scale_of(8);
  optimizer.set_loss_scale(scale);
  for (std::int64_t step = 1; step <= 4; ++step) {
    if (step == 3) optimizer.set_loss_scale({});
    run(reference, plain, step, step);
    give_gradients(scaled, step);
    if (step <= 2) scale_gradients(scaled, scale.item<double>());
    optimizer.step();
    EXPECT_TRUE(same_bits(scaled, plain)) << step;
    scale.mul_(0.5);
  }
}

TEST(TorchLossScale, BadOnesAreRefusedAndTheLastIsKept) {
  const Tensors params = make_params(), plain = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2)), reference(plain, AdamWOptions(1e-2));
  optimizer.set_loss_scale(scale_of(4));
  const auto error = [&](const torch::Tensor& scale) {
    return error_of([&] { optimizer.set_loss_scale(scale); });
  };
  EXPECT_THAT(error(torch::ones({1}, torch::kFloat64)),
              HasSubstr("octavo::torch::AdamW: loss_scale: got 1 of Double, expected one Float"));
  EXPECT_THAT(error(torch::ones({2})), HasSubstr("got 2 of Float"));
  EXPECT_THAT(error(torch::ones({0})), HasSubstr("got 0 of Float"));
  EXPECT_THAT(error(torch::ones({1}, torch::kMeta)),
              AllOf(HasSubstr("loss_scale is on meta"), HasSubstr("expected cpu, where the parameters are")));
  EXPECT_EQ(error(torch::tensor(4.0F)), "no error") << "0-d will do";
  give_gradients(params, 1);
  scale_gradients(params, 4);
  optimizer.step();
  run(reference, plain, 1, 1);
  EXPECT_TRUE(same_bits(params, plain));
}

TEST(TorchGuard, SkippedWithoutWaiting) {
  const Tensors params = make_params();
  AdamW unguarded(params, AdamWOptions(1e-2));
  run(unguarded, params, 1, 1);
  EXPECT_FALSE(unguarded.skipped().defined());
  AdamW optimizer(params, AdamWOptions(1e-2).guard(true));
  EXPECT_FALSE(optimizer.skipped().defined()) << "no step yet";
  for (const bool bad : {false, true, true, false}) {
    give_gradients(params, 2);
    if (bad) params[1].mutable_grad()[5] = std::numeric_limits<float>::infinity();
    optimizer.step();
    ASSERT_TRUE(optimizer.skipped().defined());
    EXPECT_EQ(optimizer.skipped().dim(), 0);
    EXPECT_EQ(optimizer.skipped().item<int>(), bad ? 1 : 0);
    EXPECT_EQ(optimizer.last_step_skipped(), bad);
  }
}

std::unique_ptr<ParamState> copy_of(const ParamState& state) {
  auto out = std::make_unique<ParamState>(state);
  out->count = state.count.clone();
  ParamState::each(*out, [](const std::string&, torch::Tensor& t) {
    if (t.defined()) t = t.clone();
  });
  return out;
}

TEST(TorchSetState, ContinuesToTheSameBits) {
  for (const std::string& format : formats()) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      const auto options = AdamWOptions(1e-2).state(format).master("24").guard(true).seed(3);
      const Tensors params = make_params(type);
      AdamW uninterrupted(params, options);
      run(uninterrupted, params, 1, 3);
      const Tensors resumed = copies(params), fresh = copies(params);
      AdamW optimizer(resumed, options), over_others(fresh, options);
      run(over_others, fresh, 90, 91);
      for (std::size_t i = 0; i < params.size(); ++i) {
        const ParamState& state = *uninterrupted.state_of(params[i]);
        optimizer.set_state(resumed[i], copy_of(state));
        over_others.set_state(fresh[i], copy_of(state));
        fresh[i].set_data(params[i].detach().clone());
      }
      EXPECT_EQ(optimizer.state_of(resumed[0])->step(), 3);
      EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted)));
      run(uninterrupted, params, 4, 6);
      run(optimizer, resumed, 4, 6);
      run(over_others, fresh, 4, 6);
      EXPECT_TRUE(same_bits(resumed, params)) << format;
      EXPECT_TRUE(same_bits(fresh, params)) << format;
      EXPECT_TRUE(same_bits(states(optimizer), states(uninterrupted))) << format;
    }
  }
}

TEST(TorchSetState, WhatDoesNotFitChangesNothing) {
  const Tensors params = make_params(), other = copies(params);
  AdamW optimizer(params, AdamWOptions(1e-2).state("8bit")), donor(other, AdamWOptions(1e-2).state("8bit"));
  run(optimizer, params, 1, 2);
  run(donor, other, 1, 3);
  const Tensors before = states(optimizer);
  const auto error = [&](const torch::Tensor& param, std::unique_ptr<ParamState> state) {
    const std::string message = error_of([&] { optimizer.set_state(param, std::move(state)); });
    EXPECT_TRUE(same_bits(states(optimizer), before)) << message;
    return message;
  };
  const ParamState &large = *donor.state_of(other[0]), &small = *donor.state_of(other[1]);
  EXPECT_THAT(error(other[0], copy_of(large)),
              HasSubstr("octavo::torch::AdamW: set_state: the parameter is not of this optimizer"));
  EXPECT_THAT(error(params[0], copy_of(small)),
              HasSubstr("parameter 0 of group 0: its fp32 state has 132 bytes and 0 scales, expected 17080"));
  EXPECT_THAT(error(params[1], copy_of(large)), HasSubstr("parameter 1 of group 0: its 8bit state has 4270"));
  auto finer = copy_of(large);
  finer->block_size = 64;
  EXPECT_THAT(error(params[0], std::move(finer)), HasSubstr("17 scales, expected 4270 and 67"));
  auto unknown = copy_of(large);
  unknown->format = "7bit";
  EXPECT_THAT(error(params[0], std::move(unknown)), HasSubstr("7bit"));
  auto gaps = copy_of(large);
  gaps->codes[0] = torch::zeros({2 * 4270}, torch::kUInt8).slice(0, 0, 2 * 4270, 2);
  EXPECT_THAT(error(params[0], std::move(gaps)), HasSubstr("gaps in memory"));
  EXPECT_EQ(error_of([&] { optimizer.set_state(params[0], copy_of(large)); }), "no error");
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 3);
}

// What the core asks for, for the same tensors.
TEST(TorchWorkspace, IsWhatStepsAndNormsUse) {
  for (const std::string& format : formats()) {
    const Tensors params = make_params();
    AdamW optimizer(params, AdamWOptions(1e-2).state(format));
    EXPECT_EQ(optimizer.workspace_bytes(), 0) << "no step yet";
    run(optimizer, params, 1, 1);
    std::vector<octavo::TensorArgs> tensors;
    for (const torch::Tensor& p : params) {
      const ParamState& state = *optimizer.state_of(p);
      octavo::TensorArgs& t = tensors.emplace_back();
      t.spec.numel = p.numel();
      t.spec.ndim = static_cast<int>(p.dim());
      std::copy(p.sizes().begin(), p.sizes().end(), t.spec.shape.begin());
      t.spec.format = octavo::parse_state_format(state.format).value();
      t.param = p.data_ptr();
      t.grad = p.grad().data_ptr();
      for (std::size_t slot = 0; slot < 2; ++slot) {
        t.state[slot].codes = state.codes[slot].data_ptr();
        if (state.scales[slot].defined()) t.state[slot].scales = state.scales[slot].data_ptr<float>();
      }
    }
    const octavo::Group group = octavo::Group::create({}, tensors).value();
    EXPECT_EQ(optimizer.workspace_bytes(), group.workspace_bytes()) << format;
    run(optimizer, params, 2, 3);
    EXPECT_EQ(optimizer.workspace_bytes(), group.workspace_bytes()) << format << ", and no more later";

    const Tensors clipped = make_params();
    AdamW with_norm(clipped, AdamWOptions(1e-2).state(format).max_grad_norm(1));
    run(with_norm, clipped, 1, 2);
    EXPECT_GT(with_norm.workspace_bytes(), optimizer.workspace_bytes()) << format;
  }
}

}  // namespace
}  // namespace test
