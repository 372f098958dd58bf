// Inputs that live in the device's memory (here: the host's): the same bits as the values they stand for,
// steps that are skipped, the counter and the report.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"

#include <cmath>
#include <functional>
#include <limits>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::StateFormat;
using octavo::StepArgs;
using octavo::StepReport;
using octavo::TensorSpec;
using octavo::WeightStore;

// What the caller keeps on the device.
struct Memory {
  float lr = 0.0123f;
  std::int64_t step = 0;
  float loss_scale = 1.0f;
  float found_inf = 0.0f;
  GradNorm norm{};
  StepReport report{true, true, -5};
};

TensorSet mixed_set(const OptimizerCase& optimizer, StateFormat format) {
  std::vector<TensorSpec> specs = {
      tensor_spec(64 * 30, DType::f32, DType::f32, WeightStore::nearest, format),
      tensor_spec(777, DType::bf16, DType::bf16, WeightStore::residual8, format),
      tensor_spec(333, DType::bf16, DType::f32, WeightStore::stochastic, format)};
  give_shape(specs[0]);
  return {optimizer.config, specs, 77};
}

GradNorm norm_of(const TensorSet& set) {
  std::vector<octavo::GradView> views;
  for (const TensorBuffers& t : set.tensors()) {
    views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
  }
  std::vector<double> workspace(static_cast<std::size_t>(octavo::grad_norm_workspace(views)));
  return octavo::grad_norm(views, workspace, 1).value();
}

// What was returned is also what a report in memory says, and on the CPU it is final.
void expect_report(const octavo::Result<StepReport>& got, const Memory& memory, bool skipped,
                   std::int64_t nonfinite) {
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->skipped, skipped);
  EXPECT_EQ(got->nonfinite, nonfinite);
  EXPECT_FALSE(got->pending);
  EXPECT_EQ(memory.report.skipped, skipped);
  EXPECT_EQ(memory.report.nonfinite, nonfinite);
  EXPECT_FALSE(memory.report.pending);
}

struct Case {
  const char* name;
  std::function<void(StepArgs&, const GradNorm&)> on_host;
  std::function<void(StepArgs&, Memory&)> in_memory;
};

std::vector<Case> cases() {
  const auto loss_scale = [](float scale) {
    return Case{"loss_scale", [scale](auto& a, auto&) { a.grad_factor = 0.3 / static_cast<double>(scale); },
                [scale](auto& a, auto& m) {
                  m.loss_scale = scale;
                  a.grad_factor = 0.3;
                  a.scalars.loss_scale = &m.loss_scale;
                }};
  };
  const auto clip = [](double clip_grad_norm) {
    return Case{"norm",
                [clip_grad_norm](auto& a, const auto& norm) {
                  a.grad_factor = octavo::clip_factor(norm.l2, clip_grad_norm, 0.3 / 1024.0);
                },
                [clip_grad_norm](auto& a, auto& m) {
                  m.loss_scale = 1024.0f;
                  a.grad_factor = 0.3;
                  a.clip_grad_norm = clip_grad_norm;
                  a.scalars.loss_scale = &m.loss_scale;
                  a.scalars.norm = &m.norm;
                }};
  };
  return {
      {"lr", [](auto& a, auto&) { a.hyper.lr = static_cast<double>(0.0123f); },
       [](auto& a, auto& m) {
         a.hyper.lr = std::nan("");  // not looked at
         a.scalars.lr = &m.lr;
       }},
      {"step", [](auto& a, auto&) { a.step += 4; },
       [](auto& a, auto& m) {
         m.step = a.step + 3;
         a.step = -1;  // not looked at
         a.scalars.step = &m.step;
       }},
      loss_scale(1024.0f),
      loss_scale(0.0625f),
      loss_scale(1000.3f),  // as a float, 0.3f / it has other bits than 0.3 / it in double
      loss_scale(1001.7f),  // and here 0.3 times its reciprocal has
      clip(1e-5),           // far below the norm
      clip(1e+5),           // above it: only the unscaling is left
  };
}

TEST(Scalars, EqualTheValuesTheyStandFor) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      for (const Case& c : cases()) {
        SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(octavo::name(format)) + " " + c.name);
        TensorSet host = mixed_set(optimizer, format);
        TensorSet device = host;
        TensorSet plain = host;
        for (std::int64_t step = 1; step <= 2; ++step) {
          Memory memory;
          memory.norm = norm_of(host);
          StepArgs on_host = step_args(optimizer, step);
          StepArgs in_memory = on_host;
          c.on_host(on_host, memory.norm);
          c.in_memory(in_memory, memory);
          in_memory.scalars.report = &memory.report;
          ASSERT_TRUE(plain.step(step_args(optimizer, step)).ok());
          ASSERT_TRUE(host.step(on_host).ok());
          expect_report(device.step(in_memory), memory, false, 0);
        }
        ASSERT_EQ(device.difference(host), "");
        ASSERT_NE(device.difference(plain), "") << "the scalar does nothing";
      }
    }
  }
}

TEST(Scalars, NormWithoutALimitDoesNotClip) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet plain = mixed_set(adamw, StateFormat::int8);
  TensorSet with = plain;
  Memory memory;
  memory.norm = {1e9, 1e9, 0};
  StepArgs args = step_args(adamw, 1);
  ASSERT_TRUE(plain.step(args).ok());
  args.scalars.norm = &memory.norm;
  ASSERT_TRUE(with.step(args).ok());
  EXPECT_EQ(with.difference(plain), "");
}

TEST(Scalars, FoundInfSkips) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const float found : {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, NAN, INFINITY}) {
      SCOPED_TRACE(std::string(optimizer.name) + " " + std::to_string(found));
      const bool skipped = found != 0.0f;
      TensorSet set = mixed_set(optimizer, StateFormat::int4_rank1);
      TensorSet expected = set;
      Memory memory;
      memory.found_inf = found;
      memory.step = 8;
      StepArgs args = step_args(optimizer, 0);
      args.scalars.found_inf = &memory.found_inf;
      args.scalars.step = &memory.step;
      args.scalars.report = &memory.report;
      expect_report(set.step(args), memory, skipped, 0);
      EXPECT_EQ(memory.step, skipped ? 8 : 9);
      if (!skipped) {
        ASSERT_TRUE(expected.step(step_args(optimizer, 9)).ok());
      }
      EXPECT_EQ(set.difference(expected), "");
    }
  }
}

// With a norm, its count decides and the gradients are not read, even where they disagree.
TEST(Scalars, GuardTakesTheCountOfTheNorm) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = mixed_set(adamw, StateFormat::int8);
  const TensorSet before = set;
  Memory memory;
  memory.step = 2;
  memory.norm = {1.0, 1.0, 3};
  StepArgs args = step_args(adamw, 0);
  args.skip_nonfinite = true;
  args.clip_grad_norm = 1.0;
  args.scalars.norm = &memory.norm;
  args.scalars.step = &memory.step;
  args.scalars.report = &memory.report;
  expect_report(set.step(args), memory, true, 3);
  EXPECT_EQ(memory.step, 2);
  EXPECT_EQ(set.difference(before), "");

  args.skip_nonfinite = false;
  expect_report(set.step(args), memory, false, 0);
  EXPECT_EQ(memory.step, 3);
  EXPECT_NE(set.difference(before), "");

  args.skip_nonfinite = true;
  memory.norm.nonfinite = 0;
  set.tensors()[0].grad.as<float>()[5] = NAN;
  expect_report(set.step(args), memory, false, 0);
  EXPECT_EQ(memory.step, 4);
  args.scalars.norm = nullptr;
  args.clip_grad_norm = 0.0;
  expect_report(set.step(args), memory, true, 1);
  EXPECT_EQ(memory.step, 4);
}

// Without a norm the guard counts the gradients after the division by the loss scale.
TEST(Scalars, GuardCountsUnscaledGradients) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet set = mixed_set(adamw, StateFormat::fp32);
  set.tensors()[0].grad.as<float>()[0] = 2e19f;  // its square is not finite; a quarter's is
  set.tensors()[2].grad.as<float>()[7] = 1e15f;  // so is that of 50,000 times it
  const TensorSet before = set;
  Memory memory;
  StepArgs args = step_args(adamw, 1);
  args.skip_nonfinite = true;
  args.grad_factor = 0.5;
  args.scalars.loss_scale = &memory.loss_scale;
  args.scalars.report = &memory.report;
  memory.loss_scale = 0.001f;
  expect_report(set.step(args), memory, true, 1);
  memory.loss_scale = 1e-5f;
  expect_report(set.step(args), memory, true, 2);
  EXPECT_EQ(set.difference(before), "");
  memory.loss_scale = 2.0f;
  expect_report(set.step(args), memory, false, 0);
  EXPECT_NE(set.difference(before), "");
}

TEST(Scalars, TheCounterCountsStepsThatAreTaken) {
  for (const OptimizerCase& optimizer : optimizers(false)) {
    TensorSet host = mixed_set(optimizer, StateFormat::bf16);
    TensorSet device = host;
    Memory memory;
    StepArgs args = step_args(optimizer, 0);
    args.scalars.step = &memory.step;
    args.scalars.found_inf = &memory.found_inf;
    for (int i = 0; i < 6; ++i) {
      memory.found_inf = i % 2 == 0 ? 1.0f : 0.0f;
      ASSERT_TRUE(device.step(args).ok());
    }
    EXPECT_EQ(memory.step, 3);
    for (int step = 1; step <= 3; ++step) ASSERT_TRUE(host.step(step_args(optimizer, step)).ok());
    EXPECT_EQ(device.difference(host), "") << optimizer.name;
  }
}

TEST(Scalars, AFailedCallWritesNone) {
  const OptimizerCase adamw = optimizers(false)[1];
  const TensorSet set = mixed_set(adamw, StateFormat::int4_rank1);
  auto group = octavo::Group::create(set.config(), set.args());
  ASSERT_TRUE(group.ok());
  Memory memory;
  StepArgs args = step_args(adamw, 0);
  args.scalars.step = &memory.step;
  args.scalars.report = &memory.report;
  EXPECT_FALSE(group->step(args).ok()) << "no workspace";
  EXPECT_EQ(memory.step, 0);
  EXPECT_EQ(memory.report.nonfinite, -5);
}

// The loop of docs/guides/cpp.md: a norm that never leaves the device's memory.
TEST(Scalars, ANormGroupFeedsTheStep) {
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet host = mixed_set(adamw, StateFormat::int8);
  TensorSet device = host;
  auto group = octavo::Group::create(device.config(), device.args());
  ASSERT_TRUE(group.ok());
  std::vector<octavo::GradView> views;
  for (const TensorBuffers& t : device.tensors()) {
    views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
  }
  auto norm = octavo::NormGroup::create({}, views);
  ASSERT_TRUE(norm.ok());
  const Buffer workspace(norm->workspace_bytes());
  Memory memory;
  StepArgs args = step_args(adamw, 0);
  args.skip_nonfinite = true;
  args.clip_grad_norm = 0.01;
  args.scalars.step = &memory.step;
  args.scalars.norm = &memory.norm;
  args.scalars.report = &memory.report;
  std::int64_t taken = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const bool bad = i == 2;
    for (TensorSet* set : {&host, &device}) {
      set->fill_grads(i);
      if (bad) set->tensors()[1].grad.as<std::uint16_t>()[9] = 0x7F80;  // infinity
    }
    const std::span<std::byte> room{workspace.data(), static_cast<std::size_t>(workspace.size())};
    ASSERT_TRUE(norm->run(room, &memory.norm).ok());
    expect_report(group->step(args), memory, bad, bad ? 1 : 0);
    if (!bad) {
      StepArgs plain = step_args(adamw, ++taken);
      plain.grad_factor = octavo::clip_factor(norm_of(host).l2, 0.01);
      EXPECT_LT(plain.grad_factor, 1.0);
      ASSERT_TRUE(host.step(plain).ok());
    }
    ASSERT_EQ(device.difference(host), "");
  }
  EXPECT_EQ(memory.step, 3);
}

}  // namespace
}  // namespace test
