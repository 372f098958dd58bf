// Norms, clipping and the guard through the engine, and gradient release.
// SPDX-License-Identifier: MIT
#include "tests/engine/engine_set.h"

#include <cmath>
#include <limits>

namespace test {
namespace {

using octavo::GradNorm;
using octavo::StateFormat;
using octavo::engine::EngineNormPart;

OptimizerCase adam() { return optimizers(false)[0]; }

EngineSet made(double clip_grad_norm, StateFormat format = StateFormat::int8) {
  const OptimizerCase optimizer = adam();
  EngineSet own(optimizer, {optimizer.config, mixed_specs(format), 7});
  own.options.clip_grad_norm = clip_grad_norm;
  EXPECT_TRUE(own.engine.set_group(0, own.options).ok());
  EXPECT_TRUE(own.add(own.all()).ok());
  return own;
}

TEST(EngineNorm, ClipsByTheNormOfAllInTheirOrder) {
  for (const StateFormat format : {StateFormat::int8, StateFormat::int4_rank1}) {
    EngineSet own = made(0.25, format);
    own.device.norm = &own.norm;
    TensorSet expected = own.set;
    const Handles active = {4, 0, 2, 1};
    for (std::int64_t step = 1; step <= 2; ++step) {
      own.set.fill_grads(static_cast<std::uint64_t>(step));
      expected.fill_grads(static_cast<std::uint64_t>(step));
      ASSERT_TRUE(own.begin(active, true).ok());
      ASSERT_TRUE(own.engine.norm(own.args(), std::vector<EngineNormPart>{{{}, 0, &own.norm}}).ok());
      const GradNorm norm = norm_of(expected, active);
      EXPECT_EQ(own.norm.l2, norm.l2);
      EXPECT_EQ(own.norm.max, norm.max);
      ASSERT_TRUE(own.engine.step(own.args()).ok());
      for (const std::uint32_t handle : active) step_alone(expected, handle, own.options, step, &norm);
      ASSERT_EQ(own.set.difference(expected), "");
    }
  }
}

TEST(EngineNorm, GuardSkipsEverything) {
  EngineSet own = made(0.0);
  own.counts[1] = 3;  // two cohorts
  own.device.norm = &own.norm;
  own.device.report = &own.report;
  const auto step = [&] {
    EXPECT_EQ(own.begin({0, 1, 3}, true)->cohorts, 2);
    EXPECT_TRUE(own.engine.norm(own.args(true), std::vector<EngineNormPart>{{{}, 0, &own.norm}}).ok());
    return own.engine.step(own.args(true));
  };
  const TensorSet before = own.set;
  auto* bad = own.set.tensors()[0].grad.as<float>() + 5;
  const float kept = *bad;
  *bad = std::numeric_limits<float>::quiet_NaN();
  const auto skipped = step();
  ASSERT_TRUE(skipped.ok());
  EXPECT_TRUE(skipped->skipped);
  EXPECT_EQ(skipped->nonfinite, 1);
  EXPECT_TRUE(own.report.skipped);
  EXPECT_EQ(own.report.nonfinite, 1);
  EXPECT_EQ(own.set.difference(before), "");
  EXPECT_EQ(own.counts[0], 0);
  EXPECT_EQ(own.counts[1], 3);

  *bad = kept;
  ASSERT_TRUE(step().ok());
  EXPECT_FALSE(own.report.skipped);
  EXPECT_NE(own.set.difference(before), "");
  EXPECT_EQ(own.counts[0], 1);
  EXPECT_EQ(own.counts[1], 4);

  const TensorSet stepped = own.set;  // a scaler's verdict
  const float found_inf = 1.0F;
  own.device.found_inf = &found_inf;
  ASSERT_TRUE(step().ok());
  EXPECT_TRUE(own.report.skipped);
  EXPECT_EQ(own.set.difference(stepped), "");
  EXPECT_EQ(own.counts[1], 4);
}

TEST(EngineNorm, LossScaleAndFactor) {
  EngineSet own = made(0.0);
  TensorSet expected = own.set;
  const float scale = 8.0F;
  own.device.loss_scale = &scale;
  octavo::engine::EngineArgs args = own.args();
  args.grad_factor = 16.0;
  ASSERT_TRUE(own.begin({0}).ok());
  ASSERT_TRUE(own.engine.step(args).ok());
  octavo::StepArgs alone;
  alone.hyper = own.options.hyper;
  alone.seed = own.options.seed;
  alone.step = 1;
  alone.grad_factor = 2.0;
  ASSERT_TRUE(step(expected.config(), std::vector{expected.tensors()[0].args()}, alone).ok());
  EXPECT_EQ(own.set.difference(expected), "");
}

TEST(EngineNorm, PartsAreCombinedByTheCaller) {
  EngineSet own = made(1.0);
  for (const std::uint32_t handle : {1U, 3U}) {
    octavo::engine::EngineTensor shared = own.tensor(handle);
    shared.part = 2;
    ASSERT_TRUE(own.engine.set(Handles{handle}, std::vector{shared}).ok());
  }
  GradNorm norms[3] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  own.device.norm = &own.norm;
  struct Seen {
    GradNorm* norms;
    GradNorm* total;
    int calls;
  } seen{norms, &own.norm, 0};
  const octavo::engine::EngineCombine combine{[](void* user) -> std::int32_t {
                                                auto& s = *static_cast<Seen*>(user);
                                                ++s.calls;
                                                s.total->l2 = std::hypot(s.norms[0].l2, s.norms[1].l2);
                                                return s.norms[2].l2 == 0.0 ? 0 : 1;
                                              },
                                              &seen};
  const std::vector<EngineNormPart> parts = {{{}, 2, &norms[0]}, {{}, 0, &norms[1]}, {{}, 5, &norms[2]}};
  ASSERT_TRUE(own.begin({0, 1, 3, 4}, true).ok());
  ASSERT_TRUE(own.engine.norm(own.args(), parts, combine).ok());
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(norms[0].l2, norm_of(own.set, {1, 3}).l2);
  EXPECT_EQ(norms[1].l2, norm_of(own.set, {0, 4}).l2);
  EXPECT_EQ(norms[2].nonfinite, 0);  // other ranks may have gradients of this part

  EXPECT_FALSE(own.engine.norm(own.args(), parts).ok());  // nobody to combine them
  EXPECT_FALSE(own.engine.norm(own.args(), std::vector<EngineNormPart>{{{}, 0, &norms[1]}}, combine).ok());
  const octavo::engine::EngineCombine fails{[](void*) -> std::int32_t { return 1; }, nullptr};
  EXPECT_EQ(own.engine.norm(own.args(), parts, fails).code(), octavo::StatusCode::failed);
  EXPECT_EQ(seen.calls, 1);

  // Nothing here, something elsewhere: the report says what the norm says.
  own.device.report = &own.report;
  ASSERT_TRUE(own.begin({}, true).ok());
  ASSERT_TRUE(own.engine.norm(own.args(), std::vector<EngineNormPart>{{{}, 5, &norms[2]}}, combine).ok());
  EXPECT_EQ(seen.calls, 2);
  own.norm.nonfinite = 4;
  ASSERT_TRUE(own.engine.step(own.args(true)).ok());
  EXPECT_TRUE(own.report.skipped);
  EXPECT_EQ(own.report.nonfinite, 4);
}

TEST(EngineRelease, PreviousNormClipsAndOwnCountGuards) {
  EngineSet own = made(0.5);
  own.device.norm = &own.norm;
  own.device.report = &own.report;
  std::vector<std::array<GradNorm, 2>> owns(own.counts.size());
  TensorSet expected = own.set;
  GradNorm previous;
  GradNorm total;
  for (std::int64_t step = 1; step <= 3; ++step) {
    own.set.fill_grads(static_cast<std::uint64_t>(step));
    expected.fill_grads(static_cast<std::uint64_t>(step));
    for (const std::uint32_t handle : {4U, 0U, 1U}) {
      ASSERT_TRUE(own.begin({handle}, true).ok());
      ASSERT_TRUE(own.engine.ready(own.args(true), owns[handle].data()).ok());
      EXPECT_EQ(owns[handle][0].l2, norm_of(expected, {handle}).l2);
      step_alone(expected, handle, own.options, step, &previous);
      ASSERT_EQ(own.set.difference(expected), "") << handle;
    }
    ASSERT_TRUE(own.begin({0}, true).ok());
    const auto again = own.engine.ready(own.args(true), owns[0].data());
    EXPECT_NE(again.status().message().find("tensor 0: is ready a second time"), std::string::npos);
    EXPECT_EQ(own.engine.failed_tensor(), 0);
    own.make_room();
    ASSERT_TRUE(own.engine.finish(own.args(true), std::vector<EngineNormPart>{{{}, 0, &total}}).ok());
    EXPECT_NEAR(total.l2, norm_of(expected, {0, 1, 4}).l2, 1e-12 * total.l2);
    EXPECT_EQ(own.norm.l2, total.l2);
    EXPECT_FALSE(own.report.skipped);
    previous = own.norm;
    EXPECT_EQ(own.counts[0], step);
  }
  // A gradient that is not finite: its tensor alone is skipped, and the norm of the step is not kept.
  own.set.fill_grads(4);
  expected.fill_grads(4);
  own.set.tensors()[0].grad.as<float>()[3] = std::numeric_limits<float>::infinity();
  expected.tensors()[0].grad.as<float>()[3] = std::numeric_limits<float>::infinity();
  for (const std::uint32_t handle : {0U, 1U}) {
    ASSERT_TRUE(own.begin({handle}, true).ok());
    const auto report = own.engine.ready(own.args(true), owns[handle].data());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->skipped, handle == 0);
  }
  step_alone(expected, 1, own.options, 4, &previous);
  EXPECT_EQ(own.set.difference(expected), "");
  EXPECT_EQ(own.counts[0], 3);
  ASSERT_TRUE(own.engine.finish(own.args(true), std::vector<EngineNormPart>{{{}, 0, &total}}).ok());
  EXPECT_TRUE(own.report.skipped);
  EXPECT_EQ(own.report.nonfinite, 1);
  EXPECT_EQ(own.norm.l2, previous.l2);
  // A step without any gradient skips nothing and keeps the norm.
  ASSERT_TRUE(own.engine.finish(own.args(true), std::vector<EngineNormPart>{{{}, 0, &total}}).ok());
  EXPECT_FALSE(own.report.skipped);
  EXPECT_EQ(own.norm.l2, previous.l2);
  EXPECT_EQ(total.l2, 0.0);
}

TEST(EngineRelease, WithoutNorms) {
  EngineSet own = made(0.0);
  TensorSet expected = own.set;
  ASSERT_TRUE(own.begin({1}).ok());
  ASSERT_TRUE(own.engine.ready(own.args(), nullptr).ok());
  step_alone(expected, 1, own.options, 1);
  EXPECT_EQ(own.set.difference(expected), "");
  EXPECT_FALSE(own.engine.ready(own.args(true), nullptr).ok());
  own.engine.forget_ready();
  EXPECT_FALSE(own.engine.ready(own.args(true), nullptr).ok());  // the guard needs a norm
  ASSERT_TRUE(own.engine.ready(own.args(), nullptr).ok());
  ASSERT_TRUE(own.engine.finish(own.args(), {}).ok());
  ASSERT_TRUE(own.engine.ready(own.args(), nullptr).ok());
  EXPECT_EQ(own.counts[1], 3);
}

}  // namespace
}  // namespace test
