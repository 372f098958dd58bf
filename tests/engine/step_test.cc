// Steps through the engine: the bits of single tensors stepped by themselves, whatever has a gradient when.
// SPDX-License-Identifier: MIT
#include "tests/engine/engine_set.h"

#include <cmath>
#include <limits>
#include <random>

namespace test {
namespace {

using octavo::StateFormat;

TEST(EngineStep, AnySubsetEqualsItsTensorsAlone) {
  const std::vector<Handles> active = {{0, 1, 2, 3, 4}, {0}, {1, 2, 4},      {0, 1, 2, 3, 4},
                                       {3, 0},          {},  {0, 1, 2, 3, 4}};
  for (const OptimizerCase& optimizer : optimizers(true)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(octavo::name(format)));
      EngineSet own(optimizer, {optimizer.config, mixed_specs(format), 7});
      ASSERT_TRUE(own.add(own.all()).ok());
      TensorSet expected = own.set;
      std::vector<std::int64_t> counts(own.counts.size());
      for (std::size_t step = 0; step < active.size(); ++step) {
        own.set.fill_grads(step);
        expected.fill_grads(step);
        const auto report = own.step(active[step]);
        ASSERT_TRUE(report.ok()) << report.status().message();
        EXPECT_FALSE(report->skipped || report->pending);
        for (const std::uint32_t handle : active[step])
          step_alone(expected, handle, own.options, ++counts[handle]);
        ASSERT_EQ(own.set.difference(expected), "") << "after step " << step;
        ASSERT_EQ(own.counts, counts);
      }
    }
  }
}

TEST(EngineStep, CohortsAreByGroupAndCount) {
  const OptimizerCase optimizer = optimizers(false)[0];
  EngineSet own(optimizer, {optimizer.config, mixed_specs(StateFormat::int8), 7});
  ASSERT_TRUE(own.add(own.all()).ok());
  EXPECT_EQ(own.begin({0, 1, 3})->cohorts, 1);
  own.counts[1] = 4;  // somebody has loaded a state
  EXPECT_EQ(own.begin({0, 1, 3})->cohorts, 2);
  EXPECT_TRUE(own.begin({1, 3})->fresh);
  own.counts[3] = 4;
  EXPECT_EQ(own.begin({1, 3})->cohorts, 1);  // they have met
  EXPECT_FALSE(own.begin({1, 3})->fresh);

  octavo::engine::EngineGroup second = own.options;
  second.hyper.lr = 0.25;
  second.hyper.maximize = true;
  second.seed = 9;
  ASSERT_TRUE(own.engine.set_group(7, second).ok());
  octavo::engine::EngineTensor moved = own.tensor(3);
  moved.group = 7;
  ASSERT_TRUE(own.engine.set(Handles{3}, std::vector{moved}).ok());
  EXPECT_EQ(own.begin({1, 3, 0})->cohorts, 3);
  TensorSet expected = own.set;
  ASSERT_TRUE(own.engine.step(own.args()).ok());
  step_alone(expected, 0, own.options, 1);
  step_alone(expected, 1, own.options, 5);
  step_alone(expected, 3, second, 5);
  EXPECT_EQ(own.set.difference(expected), "");

  second.hyper.lr = 0.125;  // options count at the next step, whatever was planned before
  ASSERT_TRUE(own.engine.set_group(7, second).ok());
  EXPECT_FALSE(own.begin({1, 3, 0})->fresh);
  ASSERT_TRUE(own.engine.step(own.args()).ok());
  step_alone(expected, 0, own.options, 2);
  step_alone(expected, 1, own.options, 6);
  step_alone(expected, 3, second, 6);
  EXPECT_EQ(own.set.difference(expected), "");
}

TEST(EngineStep, LearningRateInMemoryOfTheDevice) {
  const OptimizerCase optimizer = optimizers(false)[0];
  EngineSet own(optimizer, {optimizer.config, mixed_specs(StateFormat::int8), 7});
  ASSERT_TRUE(own.add(own.all()).ok());
  TensorSet expected = own.set;
  float lr = 0.5F;
  octavo::engine::EngineGroup options = own.options;
  options.lr = &lr;
  ASSERT_TRUE(own.engine.set_group(0, options).ok());
  ASSERT_TRUE(own.step({0}).ok());
  lr = 0.25F;
  ASSERT_TRUE(own.step({0}).ok());
  own.options.hyper.lr = 0.5;
  step_alone(expected, 0, own.options, 1);
  own.options.hyper.lr = 0.25;
  step_alone(expected, 0, own.options, 2);
  EXPECT_EQ(own.set.difference(expected), "");
}

TEST(EngineStep, ParametersThatShareMemoryTakeTurns) {
  const OptimizerCase optimizer = optimizers(false)[0];
  const octavo::TensorSpec spec = tensor_spec(512, octavo::DType::f32, octavo::DType::f32,
                                              octavo::WeightStore::nearest, StateFormat::int8);
  const std::vector<octavo::TensorSpec> specs(4, spec);
  EngineSet own(optimizer, {optimizer.config, specs, 7});
  TensorSet expected = own.set;
  // 1 is a view of the same memory as 0, and 3 of its second half and half of nothing else.
  std::vector<octavo::engine::EngineTensor> tensors;
  for (std::size_t i = 0; i < 4; ++i) tensors.push_back(own.tensor(i));
  tensors[1].tensor.param = tensors[0].tensor.param;
  tensors[3].tensor.param = static_cast<float*>(tensors[0].tensor.param) + 256;
  tensors[3].tensor.spec.numel = 256;
  ASSERT_TRUE(own.engine.set(own.all(), tensors).ok());
  ASSERT_EQ(own.begin({2, 1, 0, 3})->cohorts, 3);
  ASSERT_TRUE(own.engine.step(own.args()).ok());
  octavo::StepArgs args;
  args.hyper = own.options.hyper;
  args.seed = own.options.seed;
  args.step = 1;
  for (const std::size_t i : {2, 1, 0, 3}) {
    octavo::TensorArgs one = expected.tensors()[i].args();
    if (i == 1) one.param = expected.tensors()[0].args().param;
    if (i == 3) {
      one.param = static_cast<float*>(expected.tensors()[0].args().param) + 256;
      one.spec.numel = 256;
    }
    ASSERT_TRUE(step(expected.config(), std::vector{one}, args).ok());
  }
  EXPECT_EQ(own.set.difference(expected), "");
  // Without overlap among those that have gradients there is one call again.
  EXPECT_EQ(own.begin({2, 0})->cohorts, 1);
}

TEST(EngineStep, SwitchesChangeTheMoments) {
  OptimizerCase plain = optimizers(false)[0];
  ASSERT_FALSE(plain.config.amsgrad);
  OptimizerCase amsgrad = plain;
  amsgrad.config.amsgrad = true;
  EngineSet own(plain, {amsgrad.config, mixed_specs(StateFormat::int8), 7});  // room for all three
  ASSERT_TRUE(own.add(own.all()).ok());
  ASSERT_TRUE(own.step({0, 1}).ok());
  own.options.switches = 1;
  ASSERT_TRUE(own.engine.set_group(0, own.options).ok());
  const auto refused = own.begin({0, 1});
  EXPECT_NE(
      refused.status().message().find("tensor 0: the switches of its group 0 have changed, and with them its "
                                      "moments; give it to set again"),
      std::string::npos);
  EXPECT_EQ(own.engine.failed_tensor(), 0);
  EXPECT_FALSE(own.engine.step(own.args()).ok());  // what was begun before had other moments
  ASSERT_TRUE(own.add({0, 1}).ok());
  TensorSet expected = own.set;
  ASSERT_TRUE(own.step({0, 1}).ok());
  step_alone(expected, 0, own.options, 2);
  step_alone(expected, 1, own.options, 2);
  EXPECT_EQ(own.set.difference(expected), "");
}

TEST(EngineStep, TensorsComeAndGo) {
  const OptimizerCase optimizer = optimizers(false)[0];
  EngineSet own(optimizer, {optimizer.config, mixed_specs(StateFormat::int8), 7});
  ASSERT_TRUE(own.add({0, 3}).ok());
  ASSERT_TRUE(own.step({0, 3}).ok());
  ASSERT_TRUE(own.add({1}).ok());                  // late
  EXPECT_FALSE(own.engine.step(own.args()).ok());  // begun before
  TensorSet expected = own.set;
  ASSERT_EQ(own.begin({0, 1, 3})->cohorts, 2);
  ASSERT_TRUE(own.engine.step(own.args()).ok());
  step_alone(expected, 0, own.options, 2);
  step_alone(expected, 1, own.options, 1);
  step_alone(expected, 3, own.options, 2);
  EXPECT_EQ(own.set.difference(expected), "");
  own.engine.remove(Handles{0, 44});
  EXPECT_FALSE(own.begin({0, 1}).ok());
  EXPECT_EQ(own.engine.failed_tensor(), 0);
  // Its memory is free for others now.
  octavo::engine::EngineTensor again = own.tensor(0);
  ASSERT_TRUE(own.engine.set(Handles{9}, std::vector{again}).ok());
  EXPECT_FALSE(own.add({0}).ok());
}

TEST(EngineStep, PlansAreKeptAndForgotten) {
  const OptimizerCase optimizer = optimizers(false)[0];
  const std::vector<octavo::TensorSpec> specs(
      250, tensor_spec(32, octavo::DType::f32, octavo::DType::f32, octavo::WeightStore::nearest,
                       StateFormat::fp32));
  EngineSet own(optimizer, {optimizer.config, specs, 7});
  ASSERT_TRUE(own.add(own.all()).ok());
  const auto without = [&](std::uint32_t one) {
    Handles handles = own.all();
    std::erase(handles, one);
    return handles;
  };
  const auto first = own.begin(without(0));
  EXPECT_TRUE(first->fresh);
  EXPECT_FALSE(own.begin(without(0))->fresh);
  EXPECT_TRUE(own.begin(without(1))->fresh);
  EXPECT_FALSE(own.begin(without(0))->fresh);
  EXPECT_EQ(own.begin(without(0))->number, first->number);
  EXPECT_NE(own.begin(without(0), true)->number, first->number);  // a norm takes more workspace
  EXPECT_FALSE(own.begin(without(0))->fresh);
  for (std::uint32_t one = 0; one < 150; ++one) ASSERT_TRUE(own.begin(without(one)).ok());
  EXPECT_FALSE(own.begin(without(149))->fresh);
  EXPECT_TRUE(own.begin(without(0))->fresh);
}

}  // namespace
}  // namespace test
