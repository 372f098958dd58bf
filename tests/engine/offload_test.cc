// States in host memory give the bits of states on the device: every residence, with gradients that are
// accumulated, clipped and taken, whatever the queues' order of events.
// SPDX-License-Identifier: MIT
#include "tests/engine/offloads.h"

#include <cmath>
#include <limits>

namespace test {
namespace {

using octavo::Residence;
using octavo::StateFormat;
constexpr Residence kDevice = Residence::device, kHost = Residence::host, kStream = Residence::stream;

const std::vector<std::vector<Residence>>& residences() {
  static const std::vector<std::vector<Residence>> all = {{kHost, kHost, kHost, kHost, kHost},
                                                          {kStream, kStream, kStream, kStream, kStream},
                                                          {kStream, kHost, kHost, kDevice, kStream}};
  return all;
}

void run(const OptimizerCase& optimizer, StateFormat format, const Way& way, int steps) {
  SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(octavo::name(format)) + " " + way.name());
  Offloads both(optimizer, mixed_specs(format), way);
  const std::vector<Handles> active = {{0, 1, 2, 3, 4}, {4, 1, 0}};
  for (int step = 0; step < steps; ++step) {
    both.step(active[step % 4 == 3 ? 1 : 0], static_cast<std::uint64_t>(step + 1));
    if (testing::Test::HasFatalFailure()) return;
    if (step % 4 == 1) {
      ASSERT_EQ(both.difference(), "") << "after step " << step;
    }
  }
  ASSERT_EQ(both.difference(), "");
}

TEST(Offload, EqualsStatesOnTheDevice) {
  const OptimizerCase optimizer = optimizers(false)[0];
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const auto& where : residences()) {
      for (const int passes : {1, 4}) {
        for (const double clip_grad_norm : {0.0, 0.05}) {
          for (const bool take : {false, true}) {
            const Delays delays(passes == 4 && take ? 20 : 0);
            run(optimizer, format, {where, passes, clip_grad_norm, take, false, (passes == 4) != take}, 20);
          }
        }
      }
    }
  }
}

TEST(Offload, EveryOptimizer) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    for (const auto& where : residences()) {
      run(optimizer, StateFormat::int8, {where, 1, 0.05, true, false, true}, 4);
      run(optimizer, StateFormat::int4_rank1, {where, 1, 0.0, false, false, false}, 3);
    }
  }
}

// Delays that are long beside the work: the queues run in any order.
TEST(Offload, AnyOrderOfEvents) {
  const OptimizerCase optimizer = optimizers(false)[0];
  for (int seed = 1; seed <= 6; ++seed) {
    const Delays delays(1000, seed);
    run(optimizer, StateFormat::int8, {residences()[2], 2, 0.05, seed % 2 == 0, false, true}, 4);
  }
}

TEST(Offload, SumsInSinglePrecision) {
  const OptimizerCase optimizer = optimizers(false)[0];
  using octavo::DType;
  const std::vector<octavo::TensorSpec> specs = {
      tensor_spec(700, DType::bf16, DType::bf16, octavo::WeightStore::residual16, StateFormat::int8),
      tensor_spec(5000, DType::bf16, DType::bf16, octavo::WeightStore::stochastic, StateFormat::int8)};
  for (const auto& where : residences()) {
    Offloads both(optimizer, specs, {{where[0], where[1]}, 1, 0.1, true, true, false});
    // The other engine gets the sums as they should be.
    for (std::uint64_t step = 1; step <= 3; ++step) {
      std::vector<std::vector<float>> sums;
      for (const octavo::TensorSpec& spec : specs) sums.emplace_back(static_cast<std::size_t>(spec.numel));
      for (std::uint64_t pass = 0; pass < 3; ++pass) {
        TensorSet fresh = both.plain.set;
        fresh.fill_grads(10 * step + pass);
        for (std::uint32_t i = 0; i < specs.size(); ++i) {
          const void* grad = fresh.tensors()[i].grad.data();
          for (std::int64_t k = 0; k < specs[i].numel; ++k)
            sums[i][static_cast<std::size_t>(k)] += reference::load(DType::bf16, grad, k);
          const DType dtype = DType::bf16;
          ASSERT_TRUE(both.own.engine.take(Handles{i}, {&grad, 1}, {&dtype, 1}, {}, nullptr).ok());
        }
        ASSERT_TRUE(both.own.engine.wait({}, octavo::engine::EngineWait::gradients, {}, nullptr).ok());
      }
      const std::vector<const void*> null(2), given = {sums[0].data(), sums[1].data()};
      const std::vector<DType> types(2, DType::f32);
      for (EngineSet* set : {&both.own, &both.plain}) {
        ASSERT_TRUE(set->engine.begin(set->all(), set == &both.own ? null : given, types, true).ok());
        set->make_room();
        const octavo::engine::EngineNormPart part{{}, 0, &set->norm};
        ASSERT_TRUE(set->engine.norm(set->args(), {&part, 1}).ok());
        ASSERT_TRUE(set->engine.step(set->args()).ok());
      }
      EXPECT_EQ(both.own.norm.l2, both.plain.norm.l2);
      ASSERT_EQ(both.difference(), "");
    }
  }
}

TEST(Offload, SkippedSteps) {
  const OptimizerCase optimizer = optimizers(false)[0];
  for (const auto& where : residences()) {
    for (const bool defer : {false, true}) {
      const Delays delays(100);
      Offloads both(optimizer, mixed_specs(StateFormat::int8), {where, 1, 0.1, false, false, defer});
      const Handles all = both.own.all();
      both.step(all, 1, true);
      float found_inf = 1.0F;
      float scale = 4.0F;
      for (EngineSet* set : {&both.own, &both.plain}) {
        set->device.found_inf = &found_inf;
        set->device.loss_scale = &scale;
      }
      both.step(all, 2, true);
      EXPECT_TRUE(both.own.report.skipped);
      found_inf = 0.0F;  // the step before must not see it
      scale = 8.0F;
      both.step(all, 3, true);
      ASSERT_EQ(both.difference(), "") << defer;
      EXPECT_EQ(both.own.counts[0], 2);
    }
  }
}

TEST(Offload, GuardCountsHeldGradients) {
  const OptimizerCase optimizer = optimizers(false)[0];
  for (const auto& where : residences()) {
    Offloads both(optimizer, mixed_specs(StateFormat::int8), {where, 1, 0.0, true, false, false});
    EngineSet& own = both.own;
    const TensorSet before = own.set;
    own.set.tensors()[1].grad.as<std::uint16_t>()[5] = 0x7E00;  // fp16: NaN
    own.set.tensors()[0].grad.as<float>()[5] = std::numeric_limits<float>::infinity();
    std::vector<const void*> grads;
    std::vector<octavo::DType> types;
    for (const std::uint32_t handle : own.all()) {
      TensorBuffers& t = own.set.tensors()[handle];
      grads.push_back(t.grad.data());
      types.push_back(t.spec.grad_dtype);
      if (!both.takes(handle)) continue;
      ASSERT_TRUE(own.engine.take(Handles{handle}, {&grads.back(), 1}, {&types.back(), 1}, {}, nullptr).ok());
      grads.back() = nullptr;
    }
    ASSERT_TRUE(own.engine.begin(own.all(), grads, types, true).ok());
    own.make_room();
    const octavo::engine::EngineNormPart part{{}, 0, &own.norm};
    ASSERT_TRUE(own.engine.norm(own.args(true), {&part, 1}).ok());
    EXPECT_EQ(own.norm.nonfinite, 2);
    EXPECT_TRUE(std::isnan(own.norm.max));
    const auto report = own.engine.step(own.args(true));
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->skipped);
    EXPECT_FALSE(own.engine.holds(0));
    ASSERT_TRUE(own.engine.synchronize().ok());
    EXPECT_EQ(own.set.difference(before), "");
    EXPECT_EQ(own.counts, std::vector<std::int64_t>(5));
  }
}

}  // namespace
}  // namespace test
