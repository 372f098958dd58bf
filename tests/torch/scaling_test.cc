// Loss scaling, skipped steps and working memory of the LibTorch adapter, which custom training loops use.
// SPDX-License-Identifier: MIT
#include "tests/torch/support.h"

#include <octavo/engine.hpp>

#include <algorithm>
#include <limits>

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
    expect_same_bits<AdamW>(AdamWOptions(options).clip_grad_norm(0.5), torch::kFloat32);
    expect_same_bits<AdamW>(AdamWOptions(options).master("24").clip_grad_norm(0.5).skip_nonfinite(true),
                            torch::kBFloat16);
  }
  expect_same_bits<SGD>(SGDOptions(1e-2).momentum(0.9).clip_grad_norm(0.5), torch::kFloat32);
  expect_same_bits<SGD>(SGDOptions(1e-2), torch::kFloat32);
  expect_same_bits<Lion>(LionOptions(1e-2).state("8bit"), torch::kFloat32);
}

TEST(TorchLossScale, IsReadAtEveryStepAndMayEnd) {
  const Tensors plain = make_params(), scaled = copies(plain);
  SGD reference(plain, SGDOptions(1e-2).clip_grad_norm(0.5)),
      optimizer(scaled, SGDOptions(1e-2).clip_grad_norm(0.5));
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
  AdamW optimizer(params, AdamWOptions(1e-2).skip_nonfinite(true));
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

// The optimizer allocates the workspace that an engine of the same tensors needs.
TEST(TorchWorkspace, IsWhatStepsAndNormsUse) {
  for (const std::string& format : formats()) {
    const Tensors params = make_params();
    AdamW optimizer(params, AdamWOptions(1e-2).state(format));
    EXPECT_EQ(optimizer.workspace_bytes(), 0) << "no step yet";
    run(optimizer, params, 1, 1);
    std::vector<octavo_engine_tensor> tensors;
    std::vector<std::uint32_t> handles;
    std::vector<std::int64_t> counts(params.size());
    std::vector<const void*> grads;
    for (const torch::Tensor& p : params) {
      const ParamState& state = *optimizer.state_of(p);
      auto& t = tensors.emplace_back(octavo::make<octavo_engine_tensor>());
      t.numel = p.numel();
      t.ndim = static_cast<std::int32_t>(p.dim());
      std::copy(p.sizes().begin(), p.sizes().end(), t.shape);
      t.format = octavo::parse("state", state.format);
      t.param = p.data_ptr();
      for (std::size_t slot = 0; slot < 2; ++slot) {
        t.codes[slot] = state.codes[slot].data_ptr();
        if (state.scales[slot].defined()) t.scales[slot] = state.scales[slot].data_ptr<float>();
      }
      t.step = &counts[handles.size()];
      handles.push_back(static_cast<std::uint32_t>(handles.size()));
      grads.push_back(p.grad().data_ptr());
    }
    octavo::Engine engine("adamw");
    engine.set_group(0, 0, octavo::make<octavo_step_args>());
    engine.set(handles, tensors);
    engine.begin(handles, grads, std::vector<std::uint8_t>(handles.size(), 0));
    const std::int64_t needed = engine.workspace_bytes(0, 0);
    EXPECT_EQ(optimizer.workspace_bytes(), needed) << format;
    run(optimizer, params, 2, 3);
    EXPECT_EQ(optimizer.workspace_bytes(), needed) << format << ", and no more later";

    const Tensors clipped = make_params();
    AdamW with_norm(clipped, AdamWOptions(1e-2).state(format).clip_grad_norm(1));
    run(with_norm, clipped, 1, 2);
    EXPECT_GT(with_norm.workspace_bytes(), optimizer.workspace_bytes()) << format;
  }
}

}  // namespace
}  // namespace test
